"""metrics.jsonl survives crashes and resumes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from clove_ssl.config.pretraining import LoggingConfig
from clove_ssl.runs import directory
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.metrics import Metrics, last_values, read_metrics
from clove_ssl.runs.provenance import record_start


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


def test_tensorboard_gets_the_same_metrics(run: RunDirectory) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    metrics = Metrics(run, LoggingConfig(tensorboard=True), start_step=0)
    metrics.write(7, {"loss": 1.5})
    metrics.close()
    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(7, 1.5)]


class Viewer:
    """Stands for the package wandb, which would ask for an account: keeps what it is asked for."""

    def __init__(self) -> None:
        self.opened: list[dict[str, Any]] = []

    def init(self, **options: Any) -> Viewer:
        self.opened.append(options)
        return self

    def finish(self) -> None:
        """Nothing to close."""


def opened_ids(runs: list[RunDirectory], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    viewer = Viewer()
    monkeypatch.setitem(sys.modules, "wandb", viewer)
    for run in runs:
        Metrics(run, LoggingConfig(wandb_project="mine"), start_step=0).close()
    return [options["id"] for options in viewer.opened]


def started(path: Path) -> RunDirectory:
    run = directory.make(path)
    record_start(run, torch.device("cpu"), step=0, processes=1)
    return run


def test_every_run_has_an_id_of_its_own_for_wandb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [started(tmp_path / name / f"run-{n}") for name in "ab" for n in range(2)]
    first = opened_ids(runs, monkeypatch)
    assert len(set(first)) == 4
    for run in runs:
        record_start(run, torch.device("cpu"), step=5, processes=1)
    assert opened_ids(runs, monkeypatch) == first  # a resumed run goes on where it was shown


def test_a_run_of_an_earlier_version_keeps_its_id_for_wandb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = directory.make(tmp_path / "old")
    run.provenance.write_text('{"starts": [{"step": 0}]}')
    record_start(run, torch.device("cpu"), step=5, processes=1)
    assert opened_ids([run], monkeypatch) == ["old"]


def test_the_last_value_of_a_metric_may_stand_before_the_line_of_a_probe() -> None:
    rows = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}, {"step": 2, "probe_knn": 0.5}]
    assert last_values(rows) == {"step": 2, "loss": 1.0, "probe_knn": 0.5}
    assert last_values([]) == {}
