"""The order in groups of one kind, against buckets that are filled image by image."""

from __future__ import annotations

import pickle
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clove_ssl.data.order import BatchOrder, Draw, ImageOrder
from clove_ssl.tasks.loading.order import GroupedOrder

kinds = st.lists(st.integers(0, 1), min_size=1, max_size=40)
seeds = st.integers(0, 2**64 - 1)
groups = st.integers(1, 7)


def filled_buckets(kinds: list[int], seed: int, group: int, wanted: int) -> list[Draw]:
    """The first images, from a row of shuffled images dealt into buckets."""
    order = ImageOrder(len(kinds), seed)
    buckets: dict[int, list[Draw]] = {0: [], 1: []}
    found: list[Draw] = []
    for draw in map(order.at, count()):
        bucket = buckets[kinds[draw.index]]
        bucket.append(draw)
        if len(bucket) == group:
            found += bucket
            bucket.clear()
        if len(found) >= wanted:
            return found[:wanted]
    raise AssertionError("an endless row ended")


def as_list(order: ImageOrder, start: int, stop: int) -> list[Draw]:
    epochs, indices = order.draws(start, stop)
    return [Draw(*pair) for pair in zip(epochs.tolist(), indices.tolist(), strict=True)]


@given(kinds, seeds, groups)
def test_the_order_is_that_of_buckets(kinds: list[int], seed: int, group: int) -> None:
    wanted = 3 * len(kinds) + 2 * group
    expected = filled_buckets(kinds, seed, group, wanted)
    assert as_list(GroupedOrder(kinds, seed, group=group), 0, wanted) == expected


@given(kinds, seeds, groups, st.integers(0, 500), st.integers(0, 30))
def test_any_stretch_can_be_looked_up_without_those_before_it(
    kinds: list[int], seed: int, group: int, start: int, length: int
) -> None:
    from_the_start = as_list(GroupedOrder(kinds, seed, group=group), 0, start + length)
    fresh = GroupedOrder(kinds, seed, group=group)
    assert as_list(fresh, start, start + length) == from_the_start[start:]
    assert [fresh.at(start + n) for n in range(length)] == from_the_start[start:]


@given(kinds, seeds, groups)
def test_groups_are_of_one_kind_and_every_image_comes_once_per_epoch(
    kinds: list[int], seed: int, group: int
) -> None:
    order = GroupedOrder(kinds, seed, group=group)
    # A rare kind fills its row once in ``group`` epochs, so the first two are over by then.
    drawn = as_list(order, 0, (group + 2) * len(kinds) // group * group + group)
    for start in range(0, len(drawn), group):
        assert len({kinds[draw.index] for draw in drawn[start : start + group]}) == 1
    assert len(set(drawn)) == len(drawn)
    for epoch in (0, 1):
        here = sorted(draw.index for draw in drawn if draw.epoch == epoch)
        assert here == list(range(len(kinds)))


@pytest.mark.parametrize("group", [1, 2, 4, 8])
def test_all_images_are_used_once_when_groups_divide_both_kinds(group: int) -> None:
    kinds = [0] * 24 + [1] * 8
    order = GroupedOrder(kinds, 5, group=group)
    for epoch in range(3):
        epochs, indices = order.draws(32 * epoch, 32 * (epoch + 1))
        assert (epochs == epoch).all()
        assert np.sort(indices).tolist() == list(range(32))


@given(kinds, seeds, st.sampled_from([(8, 1, 8), (8, 2, 4), (8, 4, 2), (8, 2, 2), (8, 8, 1)]))
def test_slices_of_processes_add_up_to_the_batch_of_one(
    kinds: list[int], seed: int, layout: tuple[int, int, int]
) -> None:
    order = GroupedOrder(kinds, seed, group=4)
    size, processes, micro_batch = layout
    for step in (0, 3, 11):
        shared = []
        for rank in range(processes):
            plan = BatchOrder(
                order, batch_size=size, processes=processes, rank=rank, micro_batch=micro_batch
            )
            for number in range(plan.micro_batches):
                positions = plan.positions(step, number)
                shared += list(
                    zip(positions, as_list(order, positions.start, positions.stop), strict=True)
                )
        alone = as_list(order, step * size, (step + 1) * size)
        assert sorted(shared, key=lambda pair: pair[0]) == list(
            zip(range(step * size, (step + 1) * size), alone, strict=True)
        )


def test_a_copy_for_a_worker_gives_the_same_order() -> None:
    order = GroupedOrder([0, 1, 1, 0, 0], 3, group=2)
    first = as_list(order, 0, 40)
    assert as_list(pickle.loads(pickle.dumps(order)), 0, 40) == first


def test_far_positions_are_found_at_once() -> None:
    order = GroupedOrder([0] * 700 + [1] * 300, 1, group=16)
    epochs, _ = order.draws(10**9, 10**9 + 16)
    assert set(epochs.tolist()) <= {10**6 - 1, 10**6}


def test_other_seeds_give_other_orders() -> None:
    kinds = [0, 1] * 30
    assert as_list(GroupedOrder(kinds, 0, group=2), 0, 60) != as_list(
        GroupedOrder(kinds, 1, group=2), 0, 60
    )
