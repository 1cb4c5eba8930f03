"""Every method on two processes equals itself on one with the whole batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from builders.batches.two_views import IMAGES, share_of, two_views
from builders.runs.method_runs import QUEUED, TRAINED, small_method, tiny_built
from builders.runs.shared_steps import train_share
from builders.tasks.tiny_backbone import TinyBackbone
from torch import Tensor

from clove_ssl.config.bases import MethodConfig
from clove_ssl.layers.normalization import synchronize_norms
from clove_ssl.methods.base import Progress
from clove_ssl.methods.resim.windows import find_windows, sliding_windows
from clove_ssl.methods.shuffling import BatchOrders, forward_shuffled
from clove_ssl.pretraining.compile.method import compile_pieces
from clove_ssl.views.batch import ViewBatch

pytestmark = pytest.mark.forks

STEPS = 3


def config_of(name: str) -> MethodConfig:
    changes = {"shuffle_groups": 1, "queue_size": 10} if name in QUEUED else {}
    return small_method(name, **changes)


def train(name: str, rank: int, processes: int) -> dict[str, Any]:
    """Three steps with synchronized norms; everything worth comparing."""
    config = config_of(name)
    method = tiny_built(config)
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.02)
    batches = (two_views(config, step) for step in range(STEPS))
    return train_share(method, optimizer, batches, rank=rank, processes=processes)


def searched(batch: ViewBatch, *, compiled: bool) -> dict[str, Tensor]:
    """SlotCon's loss and the gradients of its predictor, whose norms span processes."""
    method = tiny_built(small_method("slotcon"))
    synchronize_norms(method, "cpu")
    if compiled:
        compile_pieces([method.search], backend="aot_eager")
    output = method(batch, Progress(0, 10))
    output.loss.backward()
    gradients = {name: p.grad for name, p in method.search.named_parameters()}
    return {"loss": output.loss.detach(), **gradients}


def shuffled_keys(rank: int, processes: int) -> Tensor:
    """Keys of a plain batch norm in two groups over all processes."""
    torch.manual_seed(0)
    backbone = TinyBackbone().double()
    images = torch.randn(8, 3, 12, 12, dtype=torch.float64).chunk(processes)[rank]
    orders = BatchOrders()
    orders.begin(5)
    return forward_shuffled(backbone.features, images, orders=orders, groups=2)


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)
    results: dict[str, Any] = {name: train(name, rank, 2) for name in TRAINED}
    for result in results.values():
        dist.all_reduce(result["losses"])
        result["losses"] /= 2
    results["keys"] = shuffled_keys(rank, 2)
    views = share_of(two_views(small_method("slotcon")), rank, 2)
    results["searched"] = [searched(views, compiled=compiled) for compiled in (False, True)]
    torch.save(results, f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes found."""
    folder = tmp_path_factory.mktemp("two")
    mp.start_processes(worker, (str(folder),), nprocs=2, start_method="fork")
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("name", TRAINED)
def test_two_processes_equal_one(name: str, together: list[dict[str, Any]]) -> None:
    alone = train(name, 0, 1)
    for rank in range(2):
        result = together[rank][name]
        torch.testing.assert_close(result["losses"], alone["losses"], rtol=1e-9, atol=0)
        for part in ("gradients", "state"):
            assert result[part].keys() == alone[part].keys()
            for key, value in alone[part].items():
                torch.testing.assert_close(result[part][key], value, rtol=1e-7, atol=1e-9, msg=key)


def test_shuffling_over_two_processes_equals_two_groups_on_one(
    together: list[dict[str, Any]],
) -> None:
    both = torch.cat([result["keys"] for result in together])
    torch.testing.assert_close(both, shuffled_keys(0, 1), rtol=1e-10, atol=1e-12)


def test_norms_over_two_processes_are_the_same_compiled(together: list[dict[str, Any]]) -> None:
    for result in together:
        plain, compiled = result["searched"]
        for name, value in plain.items():
            torch.testing.assert_close(compiled[name], value, msg=name)
    first, second = (result["searched"][0]["loss"] for result in together)
    assert first != second


def test_the_processes_have_different_numbers_of_windows() -> None:
    counts = []
    for rank in range(2):
        views = share_of(two_views(config_of("resim")), rank, 2).views
        boxes = [view.geometry.signed_boxes("pixel") for view in views]
        counts.append(int(find_windows(sliding_windows(64, 24, 12), *boxes, size=64).inside.sum()))
    assert counts[0] != counts[1]
    assert min(counts) > 0


def test_queues_wrap_within_the_steps_that_are_compared() -> None:
    assert all(config_of(name).queue_size < STEPS * IMAGES for name in QUEUED)  # type: ignore[attr-defined]
