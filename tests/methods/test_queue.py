"""The bank of feature rows."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from clove_ssl.methods.queue import FeatureQueue


def rows(first: int, count: int) -> torch.Tensor:
    return torch.arange(first, first + count, dtype=torch.float32)[:, None].expand(-1, 2)


@given(st.integers(1, 9), st.lists(st.integers(1, 25), min_size=1, max_size=6))
def test_holds_the_last_rows_wherever_batches_wrap(size: int, batches: list[int]) -> None:
    queue, pushed = FeatureQueue(size, 2), 0
    for count in batches:
        queue.enqueue(rows(pushed, count))
        pushed += count
    held = queue.entries[queue.usable()][:, 0].tolist()
    assert sorted(held) == list(range(max(0, pushed - size), pushed))
    newest = (queue.pointer.item() - 1) % size
    assert queue.entries[newest, 0] == pushed - 1


def test_only_filled_slots_are_usable() -> None:
    queue = FeatureQueue(5, 2)
    assert not queue.usable().any()
    queue.enqueue(rows(0, 3))
    assert queue.usable().tolist() == [True, True, True, False, False]
    queue.enqueue(rows(3, 3))
    assert queue.usable().all()


def test_the_oldest_rows_go_first() -> None:
    queue = FeatureQueue(4, 2)
    queue.enqueue(rows(0, 4))
    queue.enqueue(rows(4, 3))
    assert queue.entries[:, 0].tolist() == [4, 5, 6, 3]


def test_a_restored_queue_continues_exactly() -> None:
    one = FeatureQueue(4, 2)
    one.enqueue(rows(0, 3))
    other = FeatureQueue(4, 2)
    other.load_state_dict(one.state_dict())
    for queue in (one, other):
        queue.enqueue(rows(3, 6))
    assert torch.equal(one.entries, other.entries)
    assert one.pointer == other.pointer
    assert set(one.state_dict()) == {"entries", "pointer", "filled"}


def test_rows_are_stored_without_a_graph_and_in_the_queues_precision() -> None:
    queue = FeatureQueue(4, 2)
    queue.enqueue(torch.ones(2, 2, dtype=torch.bfloat16, requires_grad=True))
    assert queue.entries.dtype == torch.float32
    assert not queue.entries.requires_grad
