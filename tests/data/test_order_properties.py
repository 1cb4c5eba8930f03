"""The image order and the numbers of views, for every count, seed and number of processes."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from clove_ssl.data.order import BatchOrder, Draw, ImageOrder, many_view_uniforms, view_uniforms
from clove_ssl.errors import UserError

counts = st.integers(1, 300)
seeds = st.integers(0, 2**64 - 1)
epochs = st.integers(0, 10**6)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[int, int, int]:
    """Batch size, processes and micro-batch that fit together."""
    processes, micro_batch, rounds = (draw(st.integers(1, 6)) for _ in range(3))
    return processes * micro_batch * rounds, processes, micro_batch


def plans(order: ImageOrder, layout: tuple[int, int, int]) -> list[BatchOrder]:
    batch_size, processes, micro_batch = layout
    return [
        BatchOrder(
            order, batch_size=batch_size, processes=processes, rank=rank, micro_batch=micro_batch
        )
        for rank in range(processes)
    ]


@given(counts, seeds, epochs)
def test_every_epoch_is_a_permutation(count: int, seed: int, epoch: int) -> None:
    drawn = ImageOrder(count, seed).draws(epoch * count, (epoch + 1) * count)
    assert (drawn.epochs == epoch).all()
    assert np.array_equal(np.sort(drawn.indices), np.arange(count))


@given(counts, seeds, st.integers(0, 1000), st.integers(0, 700))
def test_a_stretch_of_the_row_is_its_single_positions(
    count: int, seed: int, start: int, length: int
) -> None:
    order = ImageOrder(count, seed)
    drawn = order.draws(start, start + length)
    one_by_one = [order.at(position) for position in range(start, start + length)]
    assert [
        Draw(*pair) for pair in zip(drawn.epochs.tolist(), drawn.indices.tolist(), strict=True)
    ] == one_by_one


@given(st.integers(20, 300), seeds, epochs)
def test_another_epoch_or_seed_is_another_order(count: int, seed: int, epoch: int) -> None:
    def order_of(seed: int, epoch: int) -> list[int]:
        return ImageOrder(count, seed).draws(epoch * count, (epoch + 1) * count).indices.tolist()

    assert order_of(seed, epoch) != order_of(seed, epoch + 1)
    assert order_of(seed, epoch) != order_of((seed + 1) % 2**64, epoch)


def test_every_image_comes_first_about_equally_often() -> None:
    first = [ImageOrder(10, seed).at(0).index for seed in range(5000)]
    share = np.bincount(first, minlength=10) / 5000
    assert np.abs(share - 0.1).max() < 0.02  # nearly five standard deviations


@given(counts, seeds, layouts(), st.integers(0, 50))
def test_processes_together_see_what_one_process_would(
    count: int, seed: int, layout: tuple[int, int, int], step: int
) -> None:
    batch_size = layout[0]
    all_plans = plans(ImageOrder(count, seed), layout)
    expected = ImageOrder(count, seed).draws(step * batch_size, (step + 1) * batch_size)
    together = [
        plan.draws(step, number)
        for number in range(all_plans[0].micro_batches)
        for plan in all_plans
    ]
    assert np.array_equal(np.concatenate([drawn.epochs for drawn in together]), expected.epochs)
    assert np.array_equal(np.concatenate([drawn.indices for drawn in together]), expected.indices)


@given(counts, seeds, st.integers(1, 3), st.integers(0, 20))
def test_micro_batches_do_not_depend_on_the_number_of_processes(
    count: int, seed: int, rounds: int, step: int
) -> None:
    def micro_batches(processes: int) -> list[list[int]]:
        layout = (12 * rounds, processes, 12 // processes)
        drawn = [
            [plan.draws(step, number).indices.tolist() for number in range(plan.micro_batches)]
            for plan in plans(ImageOrder(count, seed), layout)
        ]
        return [list(itertools.chain(*parts)) for parts in zip(*drawn, strict=True)]

    assert micro_batches(1) == micro_batches(2) == micro_batches(3) == micro_batches(12)


@given(counts, seeds, layouts(), st.integers(0, 30))
def test_a_restart_at_any_step_goes_on_identically(
    count: int, seed: int, layout: tuple[int, int, int], step: int
) -> None:
    running = plans(ImageOrder(count, seed), layout)[-1]
    for passed in range(step):
        running.draws(passed, 0)
    resumed = pickle.loads(pickle.dumps(plans(ImageOrder(count, seed), layout)[-1]))
    for later in range(step, step + 3):
        assert np.array_equal(running.draws(later, 0).indices, resumed.draws(later, 0).indices)


@given(st.integers(1, 20), seeds)
def test_a_batch_larger_than_the_images_holds_each_of_them_equally_often(
    count: int, seed: int
) -> None:
    (plan,) = plans(ImageOrder(count, seed), (5 * count, 1, 5 * count))
    assert (np.bincount(plan.draws(3, 0).indices, minlength=count) == 5).all()


def test_a_used_order_is_as_small_to_send_as_a_new_one() -> None:
    order = ImageOrder(100_000, seed=0)
    order.at(0)
    assert len(pickle.dumps(order)) < 1000


@given(layouts())
def test_layouts_that_do_not_divide_are_refused_with_one_that_does(
    layout: tuple[int, int, int],
) -> None:
    batch_size, processes, micro_batch = layout
    assume(processes * micro_batch > 1)
    order = ImageOrder(10, seed=0)
    with pytest.raises(UserError) as caught:
        plans(order, (batch_size + 1, processes, micro_batch))
    suggestion = int(str(caught.value).split()[-1].rstrip("."))
    assert plans(order, (suggestion, processes, micro_batch))


def test_impossible_ranks_counts_and_seeds_are_refused() -> None:
    order = ImageOrder(10, seed=0)
    with pytest.raises(ValueError, match="rank 2"):
        BatchOrder(order, batch_size=4, processes=2, rank=2, micro_batch=2)
    with pytest.raises(IndexError, match="micro-batch 1 of 1"):
        BatchOrder(order, batch_size=4, processes=2, rank=1, micro_batch=2).draws(0, 1)
    with pytest.raises(ValueError, match="0 images"):
        ImageOrder(0, seed=0)
    for seed in (-1, 2**64):
        with pytest.raises(UserError, match="seed"):
            ImageOrder(10, seed)


@given(seeds, epochs, st.integers(0, 10**7), st.integers(1, 300))
def test_view_numbers_are_a_pure_function_in_the_unit_interval(
    seed: int, epoch: int, index: int, count: int
) -> None:
    numbers = view_uniforms(seed, epoch, index, count)
    assert numbers.shape == (count,)
    assert numbers.dtype == np.float64
    assert ((numbers >= 0) & (numbers < 1)).all()
    assert np.array_equal(numbers, view_uniforms(seed, epoch, index, count))
    assert np.array_equal(numbers, view_uniforms(seed, epoch, index, count + 5)[:count])


@given(st.integers(0, 2**64 - 2), epochs, st.integers(0, 10**7))
def test_neighbouring_images_epochs_and_seeds_share_no_number(
    seed: int, epoch: int, index: int
) -> None:
    blocks = [
        view_uniforms(seed + s, epoch + e, index + i, 64)
        for s, e, i in itertools.product((0, 1), repeat=3)
    ]
    assert len(np.unique(np.concatenate(blocks))) == 8 * 64


def test_numbers_of_many_images_are_those_of_each() -> None:
    order, count = ImageOrder(50, seed=2**64 - 3), 37
    draws = order.draws(40, 75)  # of two epochs
    many = many_view_uniforms(order.seed, draws, count)
    for row, epoch, index in zip(many, *draws, strict=True):
        assert np.array_equal(row, view_uniforms(order.seed, int(epoch), int(index), count))


def test_view_numbers_are_uniform_within_and_across_images() -> None:
    numbers = np.stack([view_uniforms(7, 3, index, 64) for index in range(2000)])
    assert np.abs(numbers.mean() - 0.5) < 0.005
    assert np.abs(numbers.mean(axis=0) - 0.5).max() < 0.035  # about five standard deviations
    cells = np.histogram(numbers, bins=64, range=(0, 1))[0]
    assert np.abs(cells / cells.mean() - 1).max() < 0.12
    neighbours = np.corrcoef(numbers[:-1].ravel(), numbers[1:].ravel())[0, 1]
    assert abs(neighbours) < 0.015


def test_the_numbers_never_change() -> None:
    """Recorded once: a resumed run must go on with the numbers it began with."""
    indices = ImageOrder(8, seed=1).draws(0, 16).indices.tolist()
    assert indices == [0, 6, 5, 3, 4, 7, 2, 1, 0, 3, 6, 2, 5, 1, 7, 4]
    assert view_uniforms(1, 2, 3, 2).tolist() == [0.6732574623283613, 0.39781791073264405]
