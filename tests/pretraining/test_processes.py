"""Two processes with half a batch each equal one process with the whole batch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from builders.runs.method_runs import small_method
from builders.runs.shared_steps import train_share
from builders.runs.tiny_runs import tiny_config, tiny_method
from torch import Tensor

from clove_ssl.backbones.build import build_backbone
from clove_ssl.config import files
from clove_ssl.config.pretraining import BackboneConfig, LateViewsConfig
from clove_ssl.methods.base import Method
from clove_ssl.optimizers import LARS
from clove_ssl.pretraining import run as pretraining
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.metrics import read_metrics
from clove_ssl.views.batch import View, ViewBatch
from clove_ssl.views.geometry import CropGeometry

pytestmark = pytest.mark.forks

BATCH, STEPS = 4, 3
VARIANTS: dict[str, dict[str, Any]] = {
    "intra": {},
    "inter": {"negatives": "inter", "queue_size": 20},
    "inter-avg": {"negatives": "inter-avg", "queue_size": 32},
    "skip": {"unmatched_images": "skip"},
    "skip-pixpro": {"unmatched_images": "skip"},
}


def build_method(variant: str) -> Method:
    torch.manual_seed(0)
    backbone = build_backbone(BackboneConfig(name="resnet18", stage="c3"))
    choices = VARIANTS[variant]
    pixpro = variant.endswith("pixpro")
    config = small_method("pixpro", **choices) if pixpro else tiny_method(**choices)
    return config.build(backbone).double()


def whole_batch(step: int, count: int) -> ViewBatch:
    """Views with random pixels and crops; the same on every process.

    Those of the first image have nothing in common, so processes count different numbers of images
    where such ones are skipped.
    """
    generator = torch.Generator().manual_seed(step)
    views = []
    sizes = ((32, "global"), (32, "global"), (16, "local"), (16, "local"))
    for number, (size, role) in enumerate(sizes[:count]):
        corner = 40 * torch.rand(BATCH, 2, generator=generator, dtype=torch.float64)
        corner[0] += 1000 * number
        side = 30 + 30 * torch.rand(BATCH, 2, generator=generator, dtype=torch.float64)
        geometry = CropGeometry(
            boxes=torch.cat([corner, corner + side], dim=1),
            flipped=torch.rand(BATCH, generator=generator) < 0.5,
            flipped_vertically=torch.zeros(BATCH, dtype=torch.bool),
            image_size=torch.full((BATCH, 2), 100),
        )
        pixels = torch.randn(BATCH, 3, size, size, generator=generator, dtype=torch.float64)
        views.append(View(pixels, geometry, role))
    return ViewBatch(tuple(views), torch.arange(BATCH) + step * BATCH)


def train(rank: int, processes: int, variant: str) -> dict[str, Any]:
    """Three steps; everything worth comparing."""
    method = build_method(variant)
    optimizer = LARS(method.parameters(), lr=0.5, weight_decay=2e-5)
    batches = (whole_batch(step, len(method.views())) for step in range(STEPS))
    return train_share(method, optimizer, batches, rank=rank, processes=processes)


def worker(rank: int, folder: str, variant: str) -> None:
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous-{variant}"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)
    result = train(rank, 2, variant)
    dist.all_reduce(result["losses"])
    result["losses"] /= 2
    torch.save(result, f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_two_processes_equal_one(tmp_path: Path, variant: str) -> None:
    alone = train(0, 1, variant)
    mp.start_processes(worker, (str(tmp_path), variant), nprocs=2, start_method="fork")
    for rank in range(2):
        together = torch.load(tmp_path / f"rank{rank}.pt", weights_only=True)
        torch.testing.assert_close(together["losses"], alone["losses"], rtol=1e-12, atol=0)
        assert_all_close(together["gradients"], alone["gradients"])
        assert_all_close(together["state"], alone["state"])


def assert_all_close(together: dict[str, Tensor], alone: dict[str, Tensor]) -> None:
    assert together.keys() == alone.keys()
    for name, value in alone.items():
        torch.testing.assert_close(together[name], value, rtol=1e-7, atol=1e-9, msg=name)


@pytest.mark.slow
def test_torchrun_follows_a_single_process_from_the_command_line(tmp_path: Path) -> None:
    short = {"steps": 3, "late_views": LateViewsConfig(share=0.3, enlarge=1.5)}
    files.save(tiny_config(tmp_path / "unused", **short), tmp_path / "config.yaml")
    out = tmp_path / "two"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node", "2", "-m", "clove_ssl", "pretrain"]
    done = subprocess.run(
        [*command, "--config", str(tmp_path / "config.yaml"), "--out", str(out)],
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert "FutureWarning" not in done.stderr
    pretraining.pretrain(tiny_config(tmp_path / "one", **short))
    for name in ("loss", "positives_per_image_global"):
        one, two = (
            [line[name] for line in read_metrics(RunDirectory(tmp_path / run))]
            for run in ("one", "two")
        )
        assert two == pytest.approx(one, rel=1e-5)
