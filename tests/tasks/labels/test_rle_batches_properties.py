"""Many masks at once against one by one, sound and damaged."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from clove_ssl.tasks.labels.rle import (
    encode_mask,
    encode_places,
    measure_runs,
    read_counts,
    write_counts,
)

seeds = st.integers(0, 2**32)
text = st.text(st.characters(min_codepoint=40, max_codepoint=120), max_size=12) | st.text(
    max_size=5
)


def random_mask(rng: np.random.Generator) -> np.ndarray:
    height, width = rng.integers(1, 40, 2)
    return rng.random((height, width)) < rng.choice([0.0, 0.05, 0.5, 1.0])


@given(seeds)
def test_totals_are_those_of_the_masks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    masks = [random_mask(rng) for _ in range(rng.integers(1, 20))]
    totals = measure_runs([write_counts(encode_mask(mask).counts) for mask in masks])
    assert totals.sound.all()
    assert totals.pixels.tolist() == [mask.size for mask in masks]
    assert totals.inside.tolist() == [mask.sum() for mask in masks]


@given(st.lists(text, max_size=8))
def test_damaged_texts_are_found_and_harm_no_others(texts: list[str]) -> None:
    sound = [_runs(text) for text in texts]
    totals = measure_runs(texts)
    assert totals.sound.tolist() == [runs is not None for runs in sound]
    for runs, pixels, inside in zip(sound, totals.pixels, totals.inside, strict=True):
        if runs is not None:
            assert (pixels, inside) == (sum(runs), sum(runs[1::2]))


@given(seeds)
def test_pixels_have_the_runs_of_their_mask(seed: int) -> None:
    mask = random_mask(np.random.default_rng(seed))
    places = np.flatnonzero(mask.ravel(order="F"))
    height, width = mask.shape
    if len(places):
        assert encode_places(places, height=height, width=width) == encode_mask(mask)


def _runs(text: str) -> tuple[int, ...] | None:
    try:
        runs = read_counts(text)
    except ValueError:
        return None
    return runs if min(runs, default=0) >= 0 else None
