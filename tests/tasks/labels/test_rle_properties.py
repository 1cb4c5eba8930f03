"""Run lengths against masks, and against COCO's own encoder."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from clove_ssl.tasks.labels.rle import RLE, decode_mask, encode_mask, read_counts, write_counts


@st.composite
def masks(draw: st.DrawFn) -> NDArray[np.bool_]:
    """Noise, stripes, and masks that are all one value."""
    height, width = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    mask = rng.random((height, width)) < draw(st.sampled_from([0.0, 0.02, 0.5, 0.98, 1.0]))
    mask[:, : draw(st.integers(0, width))] = draw(st.booleans())
    return mask


@given(masks())
def test_a_mask_survives_its_runs_and_their_text(mask: NDArray[np.bool_]) -> None:
    rle = encode_mask(mask)
    text = write_counts(rle.counts)
    again = RLE(rle.height, rle.width, read_counts(text))
    np.testing.assert_array_equal(decode_mask(again), mask)
    assert rle.area == mask.sum()


@given(masks())
def test_runs_and_text_are_those_of_coco(mask: NDArray[np.bool_]) -> None:
    coco = pytest.importorskip("pycocotools.mask")
    theirs = coco.encode(np.asfortranarray(mask.astype(np.uint8)))
    mine = encode_mask(mask)
    assert write_counts(mine.counts) == theirs["counts"].decode()
    assert read_counts(theirs["counts"].decode()) == mine.counts


@given(st.lists(st.integers(0, 10**6), max_size=30).map(tuple))
def test_any_counts_survive_their_text(counts: tuple[int, ...]) -> None:
    assert read_counts(write_counts(counts)) == counts


def test_runs_go_down_the_columns_and_begin_outside() -> None:
    mask = np.array([[True, False, False], [True, True, False]])
    assert encode_mask(mask).counts == (0, 2, 1, 1, 2)


def test_runs_that_do_not_fill_the_mask_are_refused() -> None:
    with pytest.raises(ValueError, match="runs of 5 pixels in a mask of 2 x 3"):
        RLE(2, 3, (2, 3))
    with pytest.raises(ValueError, match="runs of"):
        RLE(2, 3, (-1, 7))


@pytest.mark.parametrize("text", ["0 1", "é", "P", "o" * 12 + "0"])
def test_text_that_is_no_run_lengths_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="compressed runs"):
        read_counts(text)
