"""Fine-tuning with two processes equals fine-tuning with one."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from references.interruptions import final_state
from references.tiny_finetuning import tiny_finetuning

from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.engine import finetuning
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.metrics import read_metrics


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def work(rank: int, config: FinetuneConfig, port: int) -> None:
    """What torchrun does for a process."""
    torch.set_num_threads(1)
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in {**place, **meeting}.items()})
    finetuning.finetune(config)


@pytest.mark.parametrize("task", ["voc-semantic", "coco-fpn", "coco-keypoints"])
def test_two_processes_equal_one(tmp_path: Path, task: str) -> None:
    config = tiny_finetuning(task, tmp_path / "one", batch_size=4)
    finetuning.finetune(config)
    together = replace(config, out=tmp_path / "two")
    mp.start_processes(work, (together, free_port()), nprocs=2, start_method="fork")
    one, two = (RunDirectory(tmp_path / name) for name in ("one", "two"))
    for mine, theirs in zip(read_metrics(one), read_metrics(two), strict=True):
        terms = [name for name in mine if name.startswith("loss")]
        assert [theirs[name] for name in terms] == pytest.approx(
            [mine[name] for name in terms], rel=1e-4
        )
    ours, others = (final_state(run.path)["learner"] for run in (one, two))
    assert ours.keys() == others.keys()
    for name, value in ours.items():
        torch.testing.assert_close(others[name], value, rtol=1e-3, atol=1e-5, msg=name)
    assert len(list(two.predictions.iterdir())) == len(list(one.predictions.iterdir()))
