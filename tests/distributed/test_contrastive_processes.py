"""BYOL, MoCo and DenseCL on two processes equal the same on one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from references.contrastive_runs import NAMES, small_method
from references.tiny_backbone import TinyBackbone
from references.vector_batches import batch_of_maps
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from clove_ssl.methods.base import Progress
from clove_ssl.modules.normalization import synchronize_norms
from clove_ssl.modules.shuffling import forward_shuffled

BATCH, STEPS = 8, 3


def views_of(step: int, rows: slice) -> list[Tensor]:
    generator = torch.Generator().manual_seed(step)
    views = torch.randn(2, BATCH, 3, 12, 12, generator=generator, dtype=torch.float64)
    return [view[rows] for view in views]


def train(name: str, rank: int, processes: int) -> dict[str, Any]:
    """Three steps with synchronized norms; everything worth comparing."""
    torch.manual_seed(0)
    changes = {} if name == "byol" else {"shuffle_groups": 1}
    config = small_method(name, size=12, **changes)
    method = config.build(TinyBackbone()).double()  # type: ignore[arg-type]
    model: nn.Module = method
    if processes > 1:
        synchronize_norms(method, "cpu")
        model = DistributedDataParallel(method, broadcast_buffers=False)
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.1)
    rows = slice(rank * BATCH // processes, (rank + 1) * BATCH // processes)
    losses = []
    for step in range(STEPS):
        output = model(batch_of_maps(*views_of(step, rows)), Progress(step, 10))
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        method.after_step(Progress(step, 10))
        losses.append(output.loss.detach())
    return {"losses": torch.stack(losses), "state": method.state_dict()}


def shuffled_keys(rank: int, processes: int) -> Tensor:
    """Keys of a plain batch norm in two groups over all processes."""
    torch.manual_seed(0)
    backbone = TinyBackbone().double()
    images = views_of(0, slice(None))[0].chunk(processes)[rank]
    return forward_shuffled(backbone.features, images, step=5, groups=2)


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)
    results: dict[str, Any] = {name: train(name, rank, 2) for name in NAMES}
    for result in results.values():
        dist.all_reduce(result["losses"])
        result["losses"] /= 2
    results["keys"] = shuffled_keys(rank, 2)
    torch.save(results, f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes found."""
    folder = tmp_path_factory.mktemp("two")
    mp.start_processes(worker, (str(folder),), nprocs=2, start_method="fork")
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_equal_one(name: str, together: list[dict[str, Any]]) -> None:
    alone = train(name, 0, 1)
    for rank in range(2):
        result = together[rank][name]
        torch.testing.assert_close(result["losses"], alone["losses"], rtol=1e-10, atol=0)
        assert result["state"].keys() == alone["state"].keys()
        for key, value in alone["state"].items():
            torch.testing.assert_close(result["state"][key], value, rtol=1e-7, atol=1e-9, msg=key)


def test_shuffling_over_two_processes_equals_two_groups_on_one(
    together: list[dict[str, Any]],
) -> None:
    both = torch.cat([result["keys"] for result in together])
    torch.testing.assert_close(both, shuffled_keys(0, 1), rtol=1e-10, atol=1e-12)
