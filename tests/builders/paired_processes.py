"""Fine-tuning runs of two processes, and how they compare with the run of one."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from builders.runs.interruptions import final_state

from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.finetuning import seeds as finetuning
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.metrics import read_metrics


def finetune_alone_and_in_pairs(
    config: FinetuneConfig, two: Path
) -> tuple[RunDirectory, RunDirectory]:
    """The same run by one process, in its own folder, and by two of them."""
    finetuning.finetune(config)
    together = replace(config, out=two)
    mp.start_processes(_work, (together, free_port()), nprocs=2, start_method="fork")
    return RunDirectory(config.out), RunDirectory(two)


def assert_same_training(
    one: RunDirectory, two: RunDirectory, *, loss_abs: float | None, weight_abs: float
) -> None:
    """Equal losses at every logged step, and equal weights in the end, within rounding."""
    for mine, theirs in zip(read_metrics(one), read_metrics(two), strict=True):
        terms = [name for name in mine if name.startswith("loss")]
        assert [theirs[name] for name in terms] == pytest.approx(
            [mine[name] for name in terms], rel=1e-4, abs=loss_abs
        )
    ours, others = (final_state(run.path)["learner"] for run in (one, two))
    assert ours.keys() == others.keys()
    for name, value in ours.items():
        torch.testing.assert_close(others[name], value, rtol=1e-3, atol=weight_abs, msg=name)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _work(rank: int, config: FinetuneConfig, port: int) -> None:
    """What torchrun does for a process."""
    torch.set_num_threads(1)
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in {**place, **meeting}.items()})
    finetuning.finetune(config)
