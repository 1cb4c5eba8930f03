"""Nested means, spreads and intervals against slow references in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from references import nested_statistics as reference

from clove_ssl.study.statistics import (
    Measured,
    bootstrap_interval,
    compare,
    exceeds,
    noise_of,
    student_quantile,
    summarize,
)

value = st.floats(0, 100, allow_nan=False)
layouts = st.lists(st.lists(value, min_size=1, max_size=4), min_size=2, max_size=4)


def measured(groups: list[list[float]]) -> Measured:
    return {(a, b): value for a, group in enumerate(groups) for b, value in enumerate(group)}


@given(layouts.filter(lambda groups: any(len(group) > 1 for group in groups)))
def test_components_are_those_of_the_analysis_of_variance(groups: list[list[float]]) -> None:
    summary = summarize(measured(groups))
    between, within = reference.variance_components(groups)
    assert summary.between is not None
    assert summary.within is not None
    assert summary.deviation is not None
    assert summary.within**2 == pytest.approx(within, rel=1e-9, abs=1e-9)
    assert summary.between**2 == pytest.approx(between, rel=1e-6, abs=1e-6)
    assert summary.deviation**2 == pytest.approx(between + within, rel=1e-6, abs=1e-6)


@given(layouts)
def test_the_error_rests_on_the_means_of_pretrainings(groups: list[list[float]]) -> None:
    summary = summarize(measured(groups))
    assert summary.mean == pytest.approx(reference.mean([*map(reference.mean, groups)]), abs=1e-9)
    error = reference.standard_error_of_group_means(groups)
    assert summary.standard_error == pytest.approx(error, rel=1e-9, abs=1e-9)
    assert summary.basis == "pre-training"
    assert (summary.pretrainings, summary.values) == (len(groups), sum(map(len, groups)))


def test_repeated_finetunings_do_not_pretend_to_be_repeated_pretrainings() -> None:
    few = summarize(measured([[50.0], [60.0]]))
    many = summarize(measured([[50.0] * 100, [60.0] * 100]))
    assert many.standard_error == few.standard_error == 5.0
    assert many.count == "2 x 100"


def test_one_pretraining_tells_only_about_finetuning() -> None:
    summary = summarize(measured([[50.0, 52.0, 54.0]]))
    assert summary.basis == "fine-tuning"
    assert summary.between is None
    assert summary.within == summary.deviation == 2.0
    assert summary.standard_error == pytest.approx(2 / math.sqrt(3))


def test_a_single_value_has_no_spread_and_is_never_notable() -> None:
    summary = summarize(measured([[50.0]]))
    assert summary.deviation is summary.standard_error is summary.within is None
    assert summary.basis == "none"
    assert not exceeds(49.0, summary.standard_error)
    assert bootstrap_interval(measured([[50.0]])) is None


def test_pretrainings_without_repeated_finetunings_have_one_deviation() -> None:
    summary = summarize(measured([[1.0], [2.0], [4.0]]))
    assert summary.within is None
    assert summary.deviation == pytest.approx(np.std([1, 2, 4], ddof=1))
    assert summary.count == "3"


@pytest.mark.parametrize(
    "groups",
    [
        [[1.0, 2.0], [4.0, 7.0]],
        [[1.0], [4.0], [9.0], [2.0]],
        [[1.0, 2.0, 6.0]],
        [[3.0, 5.0], [4.0]],
    ],
)
def test_intervals_are_quantiles_of_all_possible_resamples(groups: list[list[float]]) -> None:
    everything = reference.every_resampled_mean(groups)
    found = bootstrap_interval(measured(groups), resamples=200_000)
    assert found is not None
    # Resampled means of few values are few, so a quantile may fall on either side of its share.
    for end, share in zip(found, (0.025, 0.975), strict=True):
        around = [reference.quantile(everything, share + step) for step in (-0.004, 0.004)]
        assert around[0] - 1e-9 <= end <= around[1] + 1e-9


def test_an_interval_is_the_same_every_time() -> None:
    values = measured([[1.0, 2.0], [4.0, 7.0]])
    assert bootstrap_interval(values) == bootstrap_interval(values)


def test_methods_are_compared_on_common_seeds_only() -> None:
    ours = {(0, 0): 10.0, (0, 1): 12.0, (1, 0): 20.0, (2, 0): 99.0}
    other = {(0, 0): 9.0, (0, 1): 10.0, (1, 0): 18.0, (3, 0): 0.0}
    found = compare(ours, other)
    assert found is not None
    assert found.summary.mean == pytest.approx((1.5 + 2.0) / 2)
    assert found.summary.values == 3
    assert found.is_notable
    assert compare({(0, 0): 1.0}, {(1, 0): 1.0}) is None


def test_pairs_remove_the_luck_that_both_share() -> None:
    luck = {(a, b): 10.0 * a + b for a in range(3) for b in range(2)}
    ours = {seeds: value + 1 + 0.1 * seeds[0] for seeds, value in luck.items()}
    found = compare(ours, luck)
    assert found is not None
    assert found.is_notable
    assert found.summary.standard_error is not None
    assert found.summary.standard_error < 0.1
    spread = summarize(ours).standard_error
    assert spread is not None
    assert spread > 5


def test_twice_the_standard_error_is_not_more_than_twice() -> None:
    assert not exceeds(2.0, 1.0)
    assert exceeds(-2.1, 1.0)


def test_the_noise_is_the_spread_of_all_methods_together() -> None:
    methods = [measured([[1.0], [3.0]]), measured([[2.0], [4.0]]), measured([[7.0, 9.0]])]
    noise = noise_of(methods)
    assert noise is not None
    assert noise.freedom == 2  # the last method has one pre-training
    assert noise.deviation == pytest.approx(2**0.5)
    assert noise.least_difference(2) == pytest.approx(4.3027 * 2**0.5, rel=1e-4)
    assert noise_of(methods[2:]) is None


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (30, 2.042)]
)
def test_quantiles_are_those_of_printed_tables(freedom: int, quantile: float) -> None:
    assert student_quantile(freedom) == pytest.approx(quantile, rel=0.01)


def test_noise_hides_equal_methods_nineteen_times_of_twenty() -> None:
    random, found = np.random.default_rng(0), 0
    for _ in range(2000):
        draws = random.normal(size=(5, 2))  # five methods, two seeds
        noise = noise_of(measured([[value] for value in seeds]) for seeds in draws.tolist())
        assert noise is not None
        found += abs(draws[0].mean() - draws[1].mean()) > noise.least_difference(2)
    assert 0.03 < found / 2000 < 0.07
