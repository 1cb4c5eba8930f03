"""Outlines of masks: filled again, they are the largest part without its holes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from clove_ssl.predicting.outlines import _area, _loops, largest_outline


def test_a_ring_is_its_outer_border() -> None:
    mask = np.zeros((6, 7), bool)
    mask[1:5, 2:6] = True
    mask[2, 3] = False
    mask[0, 0] = True
    assert largest_outline(mask).tolist() == [[2, 1], [6, 1], [6, 5], [2, 5]]


def test_nothing_has_no_outline() -> None:
    assert len(largest_outline(np.zeros((4, 4), bool))) == 0


def test_parts_that_touch_at_a_corner_stay_apart() -> None:
    mask = np.zeros((5, 5), bool)
    mask[0:2, 0:2] = mask[2:5, 2:5] = True
    assert _area(largest_outline(mask)) == 9


@given(arrays(bool, array_shapes(min_dims=2, max_dims=2, max_side=8), elements=st.booleans()))
def test_borders_of_parts_minus_those_of_holes_hold_all_pixels(mask: np.ndarray) -> None:
    assert sum(_area(loop) for loop in _loops(mask)) == mask.sum()
