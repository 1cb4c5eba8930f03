"""The order in which images with rare classes come more often."""

from __future__ import annotations

import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clove_ssl.data.order import BatchOrder, Draw
from clove_ssl.tasks.loading.order import GroupedOrder
from clove_ssl.tasks.lvis.task import RepeatedOrder, repeat_factors

images = st.lists(
    st.tuples(st.integers(0, 1), st.floats(1, 4)), min_size=1, max_size=30
)  # kind and factor
seeds = st.integers(0, 2**64 - 1)
groups = st.integers(1, 7)


def order_of(images: list[tuple[int, float]], seed: int, group: int) -> RepeatedOrder:
    kinds, factors = zip(*images, strict=True)
    return RepeatedOrder(kinds, np.array(factors), seed, group=group)


def as_list(order: GroupedOrder, start: int, stop: int) -> list[Draw]:
    epochs, indices = order.draws(start, stop)
    return [Draw(*pair) for pair in zip(epochs.tolist(), indices.tolist(), strict=True)]


@given(images, seeds, groups)
def test_an_epoch_has_every_image_as_often_as_rounding_says(
    images: list[tuple[int, float]], seed: int, group: int
) -> None:
    order = order_of(images, seed, group)
    # Places in a row that wait for others come later, at most ``group`` epochs.
    total = sum(int(order.copies(epoch).sum()) for epoch in range(group + 3))
    drawn = as_list(order, 0, total + group)
    assert len(set(drawn)) == len(drawn)
    for epoch in (0, 1):
        copies = order.copies(epoch)
        for (_, factor), count in zip(images, copies.tolist(), strict=True):
            assert count in (int(factor), int(factor) + (factor % 1 > 0))
        here = Counter(draw.index % len(images) for draw in drawn if draw.epoch == epoch)
        assert [here[number] for number in range(len(images))] == copies.tolist()


@given(images, seeds, groups, st.integers(0, 300), st.integers(1, 30))
def test_any_stretch_can_be_looked_up_without_those_before_it(
    images: list[tuple[int, float]], seed: int, group: int, start: int, length: int
) -> None:
    whole = as_list(order_of(images, seed, group), 0, start + length)
    fresh = order_of(images, seed, group)
    assert as_list(fresh, start, start + length) == whole[start:]
    assert as_list(pickle.loads(pickle.dumps(fresh)), start, start + length) == whole[start:]


@given(images, seeds, groups)
def test_groups_are_of_one_kind(images: list[tuple[int, float]], seed: int, group: int) -> None:
    drawn = as_list(order_of(images, seed, group), 0, 12 * group)
    for start in range(0, len(drawn), group):
        assert len({images[d.index % len(images)][0] for d in drawn[start : start + group]}) == 1


@given(st.lists(st.integers(0, 1), min_size=1, max_size=30), seeds, groups)
def test_without_rare_classes_it_is_the_plain_order(
    kinds: list[int], seed: int, group: int
) -> None:
    plain = GroupedOrder(kinds, seed, group=group)
    repeated = RepeatedOrder(kinds, np.ones(len(kinds)), seed, group=group)
    assert as_list(repeated, 0, 60) == as_list(plain, 0, 60)


@given(images, seeds)
def test_slices_of_processes_add_up_to_the_batch_of_one(
    images: list[tuple[int, float]], seed: int
) -> None:
    order = order_of(images, seed, 4)
    for step in (0, 7):
        parts = []
        for rank in range(2):
            plan = BatchOrder(order, batch_size=8, processes=2, rank=rank, micro_batch=2)
            for number in range(plan.micro_batches):
                positions = plan.positions(step, number)
                drawn = as_list(order, positions.start, positions.stop)
                parts += list(zip(positions, drawn, strict=True))
        alone = as_list(order, 8 * step, 8 * (step + 1))
        assert [draw for _, draw in sorted(parts, key=lambda part: part[0])] == alone


def test_over_many_epochs_an_image_comes_as_often_as_its_factor_says() -> None:
    factors = np.array([1.0, 1.25, 2.7, 3.5])
    order = RepeatedOrder([0, 1, 0, 1], factors, 3, group=2)
    mean = np.mean([order.copies(epoch) for epoch in range(4000)], axis=0)
    np.testing.assert_allclose(mean, factors, atol=0.03)
    assert order.copies(0).tolist() != order.copies(1).tolist()


def test_a_class_in_few_images_makes_them_come_more_often() -> None:
    factors = repeat_factors([[0, 0], [0, 1], [0], []], threshold=0.5)
    np.testing.assert_allclose(factors, [1, np.sqrt(2), 1, 1])


def test_factors_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match=r"factors of 0\.5"):
        RepeatedOrder([0, 1], np.array([0.5, 1.0]), 0, group=1)
