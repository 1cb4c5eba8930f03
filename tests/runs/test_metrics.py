"""metrics.jsonl survives crashes and resumes."""

from __future__ import annotations

from pathlib import Path

import pytest

from clove_ssl.config.pretraining import LoggingConfig
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.metrics import Metrics, read_metrics


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


def write(run: RunDirectory, steps: range, *, start: int = 0, sign: int = 1) -> None:
    metrics = Metrics(run, LoggingConfig(), start_step=start)
    for step in steps:
        metrics.write(step, {"loss": float(sign * step)})
    metrics.close()


def test_what_is_written_is_read_back(run: RunDirectory) -> None:
    write(run, range(1, 4))
    assert read_metrics(run) == [{"step": n, "loss": float(n)} for n in (1, 2, 3)]


def test_a_resumed_run_replaces_the_lines_after_its_checkpoint(run: RunDirectory) -> None:
    write(run, range(1, 6))
    write(run, range(4, 6), start=3, sign=-1)
    assert [line["loss"] for line in read_metrics(run)] == [1, 2, 3, -4, -5]


def test_a_line_torn_by_a_crash_is_left_out(run: RunDirectory) -> None:
    write(run, range(1, 3))
    with run.metrics.open("a") as file:
        file.write('{"step": 3, "lo')
    assert len(read_metrics(run)) == 2
    write(run, range(3, 4), start=2)
    assert len(read_metrics(run)) == 3


def test_tensorboard_gets_the_same_figures(run: RunDirectory) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    metrics = Metrics(run, LoggingConfig(tensorboard=True), start_step=0)
    metrics.write(7, {"loss": 1.5})
    metrics.close()
    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(7, 1.5)]
