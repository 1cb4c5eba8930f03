"""Pasted views and patches do not depend on how many processes read them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from builders.runs.foreground_runs import NAMES, SIZE, small_method

from clove_ssl.config.pretraining import DataConfig
from clove_ssl.data.order import BatchOrder, ImageOrder
from clove_ssl.data.reading import RenderedViews
from clove_ssl.data.sources import open_source


def pixels_of_a_step(name: str, *, processes: int, micro_batch: int) -> list[Any]:
    """All views of step 1, put together from what every process reads."""
    config = DataConfig(scenes_count=30, scenes_size=48)
    reader = RenderedViews(
        open_source(config), small_method(name, size=SIZE).view_specs(), config, seed=1
    )
    places: dict[int, tuple[Any, ...]] = {}
    for rank in range(processes):
        plan = BatchOrder(
            ImageOrder(30, seed=1),
            batch_size=16,
            processes=processes,
            rank=rank,
            micro_batch=micro_batch,
        )
        for number in range(plan.micro_batches):
            read = reader[plan.draws(1, number)]
            for row, position in enumerate(plan.positions(1, number)):
                places[position] = tuple(view[row].numpy() for view in read.pixels)
    assert len(places) == 16
    return [places[position] for position in sorted(places)]


@pytest.mark.parametrize("name", NAMES)
def test_neither_processes_nor_micro_batches_change_a_pixel(name: str) -> None:
    whole = pixels_of_a_step(name, processes=1, micro_batch=16)
    for processes, micro_batch in ((2, 8), (1, 4), (2, 4)):
        shared = pixels_of_a_step(name, processes=processes, micro_batch=micro_batch)
        for mine, theirs in zip(shared, whole, strict=True):
            for one, other in zip(mine, theirs, strict=True):
                np.testing.assert_array_equal(one, other)
