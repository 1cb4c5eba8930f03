"""How long a run still takes is known before its first step has ended."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from builders.runs.tiny_runs import tiny_config

from clove_ssl.console import Console
from clove_ssl.pretraining.choices import plan_run
from clove_ssl.training.observer import Pace

METRICS = {"loss": 1.0, "images_per_second": 0.0421, "data_wait": 0.5, "epoch": 0.25}


def pace(steps: int, console: Console, *, starts_slowly: bool = False) -> Pace:
    config = tiny_config(Path("run"), steps=steps, batch_size=64, micro_batch=8)
    plan = plan_run(config, images=20, processes=1, device_type="cpu")
    return Pace(plan, console, "Take a smaller one.", starts_slowly=starts_slowly)


@pytest.mark.parametrize(("steps", "words"), [(10_000, 1), (1, 0)])
def test_a_slow_run_says_so_once_in_its_first_step(
    steps: int,
    words: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    with Console() as console:
        shown = pace(steps, console)
        for _ in range(8):
            now[0] += 8.0  # a pass of eight images
            shown.pass_done(0)
    said = capsys.readouterr().out
    assert said.count("Take a smaller one.") == words
    assert ("this takes about 7 d 9 h" in said) == bool(words)


def test_a_line_in_a_file_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    with Console() as console:
        pace(100, console).logged(50, METRICS, ())
    assert capsys.readouterr().out.strip() == (
        "step 50/100  epoch 0.25  loss 1.000  0.042 img/s  wait 50 %  left 21 h 06 min"
    )


def test_a_step_in_which_kernels_are_made_says_nothing_about_the_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Else a run of a minute would begin with hours, and one of a day with a warning of months."""
    with Console() as console:
        shown = pace(10**7, console, starts_slowly=True)
        shown.logged(1, METRICS, ())
        assert capsys.readouterr().out.split("  ")[-1].strip() == "wait 50 %"
        shown.logged(50, {**METRICS, "images_per_second": 1e5}, ())
    assert capsys.readouterr().out.strip().endswith("100,000 img/s  wait 50 %  left 107 min")


def test_a_terminal_waits_for_a_speed_that_says_something(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass that is queued on a GPU has not been made yet."""
    now = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Console() as console:
        shown = pace(10_000, console, starts_slowly=True)
        shown.logged(1, METRICS, ())
        for _ in range(2):
            now[0] += 0.6
            shown.pass_done(1)
        assert "img/s" not in capsys.readouterr().out
        now[0] += 3.0
        shown.pass_done(2)
        assert "5.7 img/s" in capsys.readouterr().out


def test_a_run_that_goes_on_has_made_its_first_step(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    with Console() as console:
        shown = pace(100, console, starts_slowly=True)
        shown.pass_done(50)
        shown._tell_of_first_step(ended_after_a_while(monkeypatch))
    assert capsys.readouterr().out == ""


def ended_after_a_while(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Of work that is still going on when it is asked for the first time."""
    monkeypatch.setattr("clove_ssl.training.observer._SILENCE", 0.0)
    return threading.Event()


def test_a_terminal_of_80_columns_shows_speed_loss_and_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    with Console() as console:
        pace(100, console).logged(50, METRICS, ())
    line = capsys.readouterr().out.rstrip("\n").rpartition("\x1b[2K")[2]
    assert len(line) < 80
    for fact in ("step 50/100", "0.042 img/s", "loss 1.000", "left 21 h 06 min"):
        assert fact in line


def test_a_terminal_shows_a_long_pass_before_it_has_ended(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("clove_ssl.training.observer._SILENCE", 0.0)
    monkeypatch.setattr("clove_ssl.training.observer._REDRAW", 0.01)
    with Console() as console, pace(100, console).kept_shown(3):
        said = ""
        while "step 3/100  working 0 s" not in said:  # a pass that does not end
            said += capsys.readouterr().out


def test_a_log_says_once_that_the_first_step_takes_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setattr("clove_ssl.training.observer._SILENCE", 0.01)
    told = threading.Event()
    with Console() as console:
        say = console.progress
        monkeypatch.setattr(console, "progress", lambda text: (say(text), told.set()))
        with pace(100, console).kept_shown(0):
            assert told.wait(60)
    assert capsys.readouterr().out == "Reading images and making the first step ...\n"


def test_a_terminal_counts_a_step_as_soon_as_it_has_ended(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Console() as console:
        shown = pace(100, console)
        shown.pass_done(6)
        assert "step 6/100" in capsys.readouterr().out
        shown.step_done(7)
        assert "step 7/100" in capsys.readouterr().out


def test_a_run_of_years_is_told_once_as_soon_as_its_speed_is_known(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Console() as console:
        shown = pace(10_000_000, console)
        for step in (1, 2):
            shown.logged(step, METRICS | {"images_per_second": 10.0}, ())
    assert capsys.readouterr().out.count("at this speed the run takes 740 d") == 1
