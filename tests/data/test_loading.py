"""Worker processes: how many there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from clove_ssl import cores
from clove_ssl.config.pretraining import DataConfig
from clove_ssl.data.loading import choose_workers


@pytest.mark.parametrize(
    ("granted", "trains_on_cpu", "workers", "why"),
    [
        ("max 100000", False, 12, "12 cores"),
        ("250000 100000", False, 2, "2 of 12 cores, which the container grants"),
        ("50000 100000", False, 1, "1 of 12 cores, which the container grants"),
        ("800000 100000", True, 4, "8 of 12 cores, which the container grants, half for training"),
    ],
)
def test_workers_are_no_more_than_the_container_lets_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    granted: str,
    trains_on_cpu: bool,
    workers: int,
    why: str,
) -> None:
    (tmp_path / "cpu.max").write_text(granted)
    monkeypatch.setattr(cores, "QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(cores, "allowed_cores", lambda: 12)
    chosen = choose_workers(DataConfig(), processes_here=1, trains_on_cpu=trains_on_cpu)
    assert chosen == (workers, why)


def test_as_many_workers_as_asked_for() -> None:
    chosen = choose_workers(DataConfig(workers=40), processes_here=1, trains_on_cpu=True)
    assert chosen == (40, "as asked")
