"""What a console says, and what a silent one does not."""

from __future__ import annotations

import pytest

from clove_ssl.console import Console


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # the output counts as a terminal


@pytest.mark.parametrize(("speaks", "written"), [(True, "\r\x1b[2Kstep 1\nDone\n"), (False, "")])
def test_only_a_console_that_speaks_shows_progress(
    capsys: pytest.CaptureFixture[str], speaks: bool, written: str
) -> None:
    with Console(speaks=speaks) as console:
        console.progress("step 1")
        console.say("Done")
    assert capsys.readouterr().out == written
