"""The line that is shown while a verb is loaded."""

from __future__ import annotations

import time

import pytest

from clove_ssl.command_line.importing import starting


@pytest.mark.parametrize(("terminal", "rank"), [(True, "0"), (True, "1"), (False, "0")])
def test_only_a_person_at_a_terminal_sees_that_it_starts(
    terminal: bool,
    rank: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # which makes no terminal of a pipe
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    monkeypatch.setattr("clove_ssl.console._REDRAW", 0.001)
    with starting():
        time.sleep(0.1)
    assert ("Starting" in capsys.readouterr().out) == (terminal and rank == "0")
