"""The kernel that draws the masks of regions against the operations of torch: the same pixels.

With ``TRITON_INTERPRET=1`` in the environment the small cases also run on the CPU.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from builders.gpu_marks import DEVICE, NEEDS_KERNELS, full_size
from torch import Tensor

from clove_ssl.tasks.labels.polygons import (
    PackedOutlines,
    _drawn_on_gpu,
    begin_masks,
    pack_outlines,
)

pytest.importorskip("triton")

pytestmark = NEEDS_KERNELS


def made_up_objects(count: int, corners: int, *, seed: int) -> PackedOutlines:
    """Objects of no, one and several polygons, which cross themselves and each other."""
    rng = np.random.default_rng(seed)
    objects = []
    for number in range(count):
        lengths = rng.integers(1, corners + 1, number % 4)
        polygons = [rng.uniform(-20, 120, 2 * length) for length in lengths]
        # Whole numbers as well: corners and edges that lie exactly on the grid.
        objects.append([np.round(each) if number % 3 else each for each in polygons])
    return pack_outlines(objects)


def made_up_regions(count: int, objects: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Which objects regions show, and their boxes, of which some have no area: (R,), (R, 5)."""
    generator = torch.Generator().manual_seed(seed)
    low = 80 * torch.rand(count, 2, generator=generator)
    size = 60 * torch.rand(count, 2, generator=generator) ** 2
    size[::7] = 0
    size[1::7], low[1::7] = 28, low[1::7].round()  # a pixel of the image is one of the mask
    shown = torch.randint(objects, (count,), generator=generator)
    return shown, torch.cat([torch.zeros(count, 1), low, low + size], dim=1)


def compare(outlines: PackedOutlines, shown: Tensor, regions: Tensor, *, size: int) -> None:
    boxes = regions[:, 1:]  # with gaps between the rows, as in a training step
    totals = outlines.object_sizes[:, shown].sum(dim=1).tolist()
    expected = begin_masks(outlines, shown, boxes, size=size, totals=totals).read()
    found = _drawn_on_gpu(
        PackedOutlines(*(column.to(DEVICE) for column in outlines)),
        shown.to(DEVICE),
        regions.to(DEVICE)[:, 1:],
        size=size,
    ).read()
    assert found.dtype == torch.bool
    assert torch.equal(found.cpu(), expected)
    assert expected.any() == (len(shown) > 0)


@pytest.mark.parametrize(("size", "corners"), [(28, 9), (14, 70)])
def test_tiny_masks(size: int, corners: int) -> None:
    outlines = made_up_objects(12, corners, seed=size)
    compare(outlines, *made_up_regions(12, 12, seed=1), size=size)


def test_tiny_masks_of_nothing() -> None:
    compare(made_up_objects(4, 5, seed=0), *made_up_regions(0, 4, seed=1), size=14)


@full_size
@pytest.mark.parametrize("size", [14, 28, 56])
def test_the_masks_of_a_batch(size: int) -> None:
    outlines = made_up_objects(200, 300, seed=2)
    compare(outlines, *made_up_regions(2000, 200, seed=3), size=size)
