"""Schedules as pure functions of the step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from references import schedules as reference

from clove_ssl.schedules import cosine, linear, warmup_cosine


@given(
    st.integers(1, 60),
    st.integers(0, 60),
    st.floats(0.1, 10),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_learning_rates_are_those_of_the_reference(
    descent: int, warmup: int, peak: float, start: float, final: float
) -> None:
    total = descent + warmup
    value = warmup_cosine(
        peak=peak,
        total_steps=total,
        warmup_steps=warmup,
        start=start * peak,
        final=final * peak,
    )
    expected = reference.warmup_cosine(peak, total, warmup, start * peak, final * peak)
    np.testing.assert_allclose([value(step) for step in range(total)], expected, atol=1e-12)


@given(st.integers(1, 100), st.floats(0, 1), st.floats(0, 1))
def test_cosines_are_those_of_the_reference(total: int, start: float, end: float) -> None:
    value = cosine(start, end, total)
    expected = reference.cosine(start, end, total)
    np.testing.assert_allclose([value(step) for step in range(total)], expected, atol=1e-12)


def test_the_peak_comes_at_the_last_warmup_step_and_again_after_it() -> None:
    value = warmup_cosine(peak=8.0, total_steps=100, warmup_steps=10, start=0.08, final=0.08)
    assert value(0) == 0.08
    assert value(8) < 8.0
    assert value(9) == value(10) == 8.0
    assert value(11) < 8.0


def test_without_warmup_the_first_step_has_the_peak() -> None:
    value = warmup_cosine(peak=2.0, total_steps=10, warmup_steps=0, start=0.5, final=0.0)
    assert value(0) == 2.0


def test_a_warmup_of_one_step_is_the_start_value() -> None:
    value = warmup_cosine(peak=2.0, total_steps=10, warmup_steps=1, start=0.5, final=0.0)
    assert value(0) == 0.5
    assert value(1) == 2.0


def test_a_warmup_longer_than_the_run_never_falls() -> None:
    value = warmup_cosine(peak=2.0, total_steps=5, warmup_steps=10, start=0.0, final=0.0)
    rates = [value(step) for step in range(5)]
    assert rates == sorted(rates)
    assert rates[-1] == pytest.approx(2.0 * 4 / 9)


def test_steps_past_the_end_keep_the_last_value() -> None:
    assert cosine(0.99, 1.0, 10)(25) == 1.0


def test_a_line_goes_from_one_value_to_the_other_and_stays_there() -> None:
    value = linear(3.0, 1.0, 4)
    assert [value(step) for step in (0, 1, 2, 4, 9)] == [3.0, 2.5, 2.0, 1.0, 1.0]
