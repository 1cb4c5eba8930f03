"""What a console says, and what a silent one does not."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from clove_ssl.console import Console, LiveLine, rate

CLEAR = "\r\x1b[2K"


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


@pytest.mark.parametrize(("columns", "shown", "hidden"), [(79, "left", "wait"), (199, "wait", "?")])
def test_a_live_line_fits_its_terminal(columns: int, shown: str, hidden: str) -> None:
    facts = ["step 1234/100000", "0.042 img/s", "loss 109.326", "left 16 h 53 min"]
    facts += ["epoch 12.30", "wait 0 %", "loss_cells 99.998", "loss_whole 22.206"]
    line = LiveLine(0.25, facts).fitted(columns)
    assert len(line) <= columns
    assert all(fact in line for fact in facts[:4])
    assert shown in line
    assert hidden not in line
    assert LiveLine(0.5, ["half"]).fitted(20, plain=True) == "#######-------  half"


def test_slow_speeds_are_not_nothing() -> None:
    assert [rate(speed) for speed in (2941.2, 7.31, 0.0421)] == [
        "2,941 img/s",
        "7.3 img/s",
        "0.042 img/s",
    ]


def test_long_work_shows_how_far_it_is_and_leaves_no_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Console() as console, console.working("Evaluating", total=4) as work:
        work.done(3)
        line = work.line()
        assert isinstance(line, LiveLine)
        assert line.share == 0.75
        assert line.facts[0] == "Evaluating 3/4"
        console.live(line)
    assert capsys.readouterr().out.endswith("\r\x1b[2K")


def test_what_is_said_during_work_takes_the_place_of_its_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Console() as console, console.working("Measuring", total=2) as work:
        work.doing("floor")
        line = work.line()
        assert isinstance(line, LiveLine)
        assert list(line.facts) == ["Measuring 0/2", "0 s", "floor"]
        console.live("Measuring 0/2")
        console.say("floor: 3 ms")
    assert capsys.readouterr().out == f"{CLEAR}Measuring 0/2{CLEAR}floor: 3 ms\n"


def test_long_work_that_no_terminal_shows_says_once_what_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORCE_COLOR")
    with Console() as console, console.working("Reading labels"):
        pass  # soon done
    assert capsys.readouterr().out == ""
    monkeypatch.setattr("clove_ssl.console._FIRST_WORD", 0.01)
    told = threading.Event()
    with Console() as console:
        say = console.progress
        monkeypatch.setattr(console, "progress", lambda text: (say(text), told.set()))
        with console.working("Evaluating", total=4):
            assert told.wait(60)
    assert capsys.readouterr().out == "Evaluating 0/4  0 s\n"


_WORKS = """
import sys, time
import clove_ssl.console as module
module._FIRST_WORD = 0.0
try:
    with module.Console() as console:
        with console.working("Reading labels"):
            time.sleep(0.5)
        print("worked", file=sys.stderr)
        console.say("read")
except BrokenPipeError:
    print("met", file=sys.stderr)
    sys.stdout = None
"""


def test_a_reader_that_left_is_met_by_the_main_thread() -> None:
    """The word about long work is said by another thread, which must not keep it to itself."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as nobody_reads:
        done = subprocess.run(
            [sys.executable, "-c", _WORKS],
            stdout=nobody_reads,
            stderr=subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if name != "FORCE_COLOR"},
            text=True,
            check=False,
        )
    assert done.stderr.splitlines()[:2] == ["worked", "met"]


def test_a_line_that_another_thread_draws_does_not_run_into_what_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    console = Console()
    clock = threading.Thread(target=console.live, args=("step 3",))
    usual = console._rich.print

    def meanwhile_drawn(text: str) -> None:
        clock.start()
        clock.join(0.2)
        usual(text)

    monkeypatch.setattr(console._rich, "print", meanwhile_drawn)
    console.say("said")
    clock.join()
    assert capsys.readouterr().out == f"said\n{CLEAR}step 3"
