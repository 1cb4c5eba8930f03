"""What spans processes: batch norm as if on the joined batch, and equal queues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from builders.tasks.varied_norms import varied_norm
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from clove_ssl.layers.normalization import (
    SynchronizedBatchNorm1d,
    SynchronizedBatchNorm2d,
    normalize_counted,
    synchronize_norms,
)
from clove_ssl.methods.queue import FeatureQueue

pytestmark = pytest.mark.forks

PROCESSES = 2
Results = list[dict[str, Any]]
OPTIONS = [{}, {"affine": False}, {"momentum": None, "eps": 0.1}, {"track_running_stats": False}]


def uneven_batches() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    maps = 3 * torch.randn(5, 4, 2, 3, generator=g, dtype=torch.float64) + 100
    probe = torch.randn(5, 4, 2, 3, generator=g, dtype=torch.float64)
    return maps, probe


def share(values: Tensor, rank: int) -> Tensor:
    return values[:3] if rank == 0 else values[3:]


def run_norm(norm: nn.Module, maps: Tensor, probe: Tensor) -> dict[str, Tensor]:
    """Two batches in train mode, the second one's gradients, and the state afterwards."""
    norm(maps + 1)
    maps = maps.clone().requires_grad_()
    out = norm(maps)
    (out * probe).sum().backward()
    assert maps.grad is not None
    result = {"out": out.detach(), "grad": maps.grad, **norm.state_dict()}
    return result | {f"grad_{n}": p.grad for n, p in norm.named_parameters()}


def _norm_over_processes(rank: int) -> list[dict[str, Tensor]]:
    maps, probe = (share(values, rank) for values in uneven_batches())
    norms = [
        synchronize_norms(varied_norm(nn.BatchNorm2d, **options), "cpu") for options in OPTIONS
    ]
    assert all(type(norm) is SynchronizedBatchNorm2d for norm in norms)
    return [run_norm(norm, maps, probe) for norm in norms]


def _vectors_and_eval(rank: int) -> dict[str, Tensor]:
    rows = share(uneven_batches()[0].flatten(2)[..., 0], rank)  # (B, 4)
    norm = synchronize_norms(nn.BatchNorm1d(4).double(), "cpu")
    assert type(norm) is SynchronizedBatchNorm1d
    trained = norm(rows)
    norm.eval()
    return {"trained": trained.detach(), "eval": norm(rows).detach()}


COUNTED = torch.tensor([True, True, False, False, True])  # 2 rows here, 1 there


def _counted_rows(rank: int) -> dict[str, Tensor]:
    maps, probe = (share(values[..., 0, 0], rank) for values in uneven_batches())  # (B, 4)
    counted = share(COUNTED, rank)
    norm = synchronize_norms(nn.BatchNorm1d(4).double(), "cpu")
    rows = maps.clone().requires_grad_()
    out = normalize_counted(norm, rows, counted)
    (out * probe * counted[:, None]).sum().backward()
    assert rows.grad is not None
    return {"out": out.detach()[counted], "grad": rows.grad[counted], **norm.state_dict()}


def small_network() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 1), nn.BatchNorm2d(4)
    ).double()


def even_batch() -> tuple[Tensor, Tensor]:
    maps, probe = uneven_batches()
    return maps[:4], probe[:4]


def _distributed_training(rank: int) -> dict[str, Tensor]:
    maps, probe = (values[2 * rank : 2 * rank + 2] for values in even_batch())
    network = synchronize_norms(small_network(), "cpu")
    model = DistributedDataParallel(network, broadcast_buffers=False)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        (model(maps) * probe).square().mean().backward()
        optimizer.step()
    return network.state_dict()


def _fill_queue(rank: int) -> dict[str, Tensor]:
    queue = FeatureQueue(5, 2)
    for step in range(3):
        rows = torch.tensor([[10.0 * step + 2 * rank], [10.0 * step + 2 * rank + 1]])
        queue.enqueue(rows.expand(-1, 2).mT.contiguous().mT)  # columns first in memory
    return queue.state_dict()


def _enter(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder / 'rendezvous'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=PROCESSES)
    try:
        results = {
            "norms": _norm_over_processes(rank),
            "rows": _vectors_and_eval(rank),
            "counted": _counted_rows(rank),
            "training": _distributed_training(rank),
            "queue": _fill_queue(rank),
        }
        torch.save(results, folder / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What each of two gloo processes computed; starting them is slow, so they start once."""
    folder = tmp_path_factory.mktemp("processes")
    # Forked, because a spawned process could not import a test module by its name.
    mp.start_processes(_enter, (folder,), nprocs=PROCESSES, start_method="fork")
    return [torch.load(folder / f"{rank}.pt") for rank in range(PROCESSES)]


def test_everything_is_that_of_plain_batch_norm_on_the_joined_batch(results: Results) -> None:
    norms = [result["norms"] for result in results]
    for options, first, second in zip(OPTIONS, *norms, strict=True):
        expected = run_norm(varied_norm(nn.BatchNorm2d, **options), *uneven_batches())
        for name, value in expected.items():
            if name in {"out", "grad"}:
                actual = torch.cat([first[name], second[name]])
            elif name.startswith("grad_"):
                actual = first[name] + second[name]  # each process has its share
            else:
                torch.testing.assert_close(first[name], second[name], rtol=0, atol=0)
                actual = first[name]
            torch.testing.assert_close(actual, value, rtol=1e-10, atol=1e-10)


def test_rows_are_normalised_too_and_eval_mode_uses_running_statistics(results: Results) -> None:
    shares = [result["rows"] for result in results]
    rows = uneven_batches()[0].flatten(2)[..., 0]
    norm = nn.BatchNorm1d(4).double()
    joined = torch.cat([part["trained"] for part in shares])
    torch.testing.assert_close(joined, norm(rows).detach())
    norm.eval()
    torch.testing.assert_close(torch.cat([part["eval"] for part in shares]), norm(rows).detach())


def test_counted_rows_of_all_processes_share_statistics(results: Results) -> None:
    first, second = (result["counted"] for result in results)
    maps, probe = (values[COUNTED][..., 0, 0] for values in uneven_batches())
    norm, rows = nn.BatchNorm1d(4).double(), maps.clone().requires_grad_()
    out = norm(rows)
    (out * probe).sum().backward()
    torch.testing.assert_close(torch.cat([first["out"], second["out"]]), out.detach())
    torch.testing.assert_close(torch.cat([first["grad"], second["grad"]]), rows.grad)
    for name, value in norm.state_dict().items():
        torch.testing.assert_close(first[name], value)
        torch.testing.assert_close(second[name], value)


def test_training_under_ddp_is_training_on_the_joined_batch(results: Results) -> None:
    first, second = (result["training"] for result in results)
    maps, probe = even_batch()
    network = small_network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        (network(maps) * probe).square().mean().backward()
        optimizer.step()
    for name, value in network.state_dict().items():
        torch.testing.assert_close(first[name], value, rtol=1e-9, atol=1e-9)
        assert torch.equal(first[name], second[name])


def test_queues_take_the_rows_of_all_processes_in_rank_order(results: Results) -> None:
    first, second = (result["queue"] for result in results)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert first["entries"][:, 0].tolist() == [22, 23, 13, 20, 21]
    assert first["pointer"] == 12 % 5
