"""What processes tell each other inside a step, and what one alone keeps."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from clove_ssl.layers.collectives import (
    gather_rows,
    gather_with_gradient,
    mean_count,
    mean_over_processes,
    processes,
    rank,
    sum_with_gradient,
)

ROWS = torch.arange(8, dtype=torch.float64).reshape(4, 2) - 3


def exchange(number: int, folder: str) -> None:
    """Process ``number`` of two: what it learns, and gradients of sums of squares."""
    torch.set_num_threads(1)
    meeting = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", init_method=meeting, rank=number, world_size=2)
    mine = ROWS.chunk(2)[number]
    gathered, summed = mine.clone().requires_grad_(), mine.clone().requires_grad_()
    gather_with_gradient(gathered).square().sum().backward()
    sum_with_gradient(summed).square().sum().backward()
    found = {
        "place": torch.tensor([rank(), processes()]),
        "rows": gather_rows(mine.mT).mT,  # not contiguous
        "mean": mean_over_processes(mine),
        "counts": mean_count(torch.tensor([number, 2 * number])),
        "gathered": gathered.grad,
        "summed": summed.grad,
    }
    torch.save(found, f"{folder}/{number}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Tensor]]:
    """What each of two processes learned."""
    folder = tmp_path_factory.mktemp("two")
    mp.start_processes(exchange, (str(folder),), nprocs=2, start_method="fork")
    return [torch.load(folder / f"{number}.pt", weights_only=True) for number in range(2)]


def test_every_process_has_the_rows_of_all_in_rank_order(found: list[dict[str, Tensor]]) -> None:
    first, second = ROWS.chunk(2)
    for number, result in enumerate(found):
        assert result["place"].tolist() == [number, 2]
        assert torch.equal(result["rows"], torch.cat([first.mT, second.mT]).mT)
        assert torch.equal(result["mean"], (first + second) / 2)


def test_a_mean_count_is_a_fraction(found: list[dict[str, Tensor]]) -> None:
    for result in found:
        assert result["counts"].dtype == torch.float64
        assert result["counts"].tolist() == [0.5, 1.0]


def test_gradients_are_those_of_the_sum_of_all_losses(found: list[dict[str, Tensor]]) -> None:
    first, second = ROWS.chunk(2)
    for result, mine in zip(found, (first, second), strict=True):
        assert torch.equal(result["gathered"], 2 * 2 * mine)  # both processes have every square
        assert torch.equal(result["summed"], 2 * 2 * (first + second))


def test_a_single_process_keeps_what_it_has() -> None:
    assert (rank(), processes()) == (0, 1)
    for share in (gather_rows, gather_with_gradient, sum_with_gradient):
        assert share(ROWS) is ROWS
    assert mean_count(torch.tensor([3, 0, 5])).tolist() == [3, 0, 5]
