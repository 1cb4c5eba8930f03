"""Batches of views: normalisation and moving about."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torchvision.transforms.functional import convert_image_dtype
from torchvision.transforms.functional import normalize as torchvision_normalize

from clove_ssl.views.batch import IMAGENET_MEAN, IMAGENET_STD, View, ViewBatch, joined_pixels
from clove_ssl.views.geometry import CropGeometry


@pytest.fixture
def batch() -> ViewBatch:
    g = torch.Generator().manual_seed(0)
    geometry = CropGeometry(
        boxes=torch.tensor([[0.0, 0.0, 10.0, 10.0], [5.0, 5.0, 20.0, 20.0]]),
        flipped=torch.tensor([False, True]),
        flipped_vertically=torch.tensor([False, False]),
        image_size=torch.tensor([[20, 20], [30, 40]]),
    )
    views = tuple(
        View(torch.randint(0, 256, (2, 3, size, size), dtype=torch.uint8, generator=g), geometry, r)
        for size, r in [(16, "global"), (8, "local")]
    )
    return ViewBatch(views, torch.tensor([7, 3]))


def test_pixels_are_normalised_as_imagenet_models_expect(batch: ViewBatch) -> None:
    normalized = batch.normalized(torch.float32, channels_last=False)
    for before, after in zip(batch.views, normalized.views, strict=True):
        shares = convert_image_dtype(before.pixels, torch.float64)
        expected = torchvision_normalize(shares, list(IMAGENET_MEAN), list(IMAGENET_STD))
        torch.testing.assert_close(after.pixels.double(), expected, rtol=0, atol=1e-6)
        assert after.role == before.role
        assert after.geometry is before.geometry
    assert torch.equal(normalized.index, batch.index)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels_last", [True, False])
def test_pixels_get_the_asked_type_and_layout(batch, dtype, channels_last) -> None:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    for view in batch.normalized(dtype, channels_last=channels_last).views:
        assert view.pixels.dtype == dtype
        assert view.pixels.is_contiguous(memory_format=layout)


def test_half_precision_is_rounded_once(batch: ViewBatch) -> None:
    exact = batch.normalized(torch.float32, channels_last=True).views[0].pixels
    half = batch.normalized(torch.bfloat16, channels_last=True).views[0].pixels
    assert torch.equal(half, exact.bfloat16())


def test_normalising_twice_is_refused(batch: ViewBatch) -> None:
    once = batch.normalized(torch.float32, channels_last=False)
    with pytest.raises(TypeError, match="already"):
        once.normalized(torch.float32, channels_last=False)


def test_a_batch_moves_in_one_piece(batch: ViewBatch) -> None:
    batch = replace(batch, labels=torch.tensor([1, 0]))
    views = (replace(batch.views[0], foreground=torch.zeros(2, 4)), batch.views[1])
    moved = replace(batch, views=views).to("meta")
    tensors = [moved.index, moved.labels, moved.views[0].foreground]
    for view in moved.views:
        tensors += [view.pixels, *vars(view.geometry).values()]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert moved.views[1].foreground is None
    assert [view.role for view in moved.views] == ["global", "local"]


LAYOUTS = [torch.channels_last, torch.contiguous_format]


def views_of(pixels: tuple[torch.Tensor, ...], batch: ViewBatch) -> list[View]:
    return [View(part, batch.views[0].geometry, "global") for part in pixels]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_views_that_lie_side_by_side_are_joined_without_a_copy(batch, layout) -> None:
    together = torch.randn(8, 3, 4, 5).to(memory_format=layout)
    joined = joined_pixels(views_of(together[2:].split(2), batch))
    assert torch.equal(joined, together[2:])
    assert joined.data_ptr() == together[2:].data_ptr()
    assert joined.is_contiguous(memory_format=layout)


@pytest.mark.parametrize("order", [(1, 0), (0, 2), (0, 0)])
def test_views_in_another_order_or_with_gaps_are_copied(batch, order) -> None:
    parts = torch.randn(6, 3, 4, 5).split(2)
    chosen = tuple(parts[place] for place in order)
    assert torch.equal(joined_pixels(views_of(chosen, batch)), torch.cat(chosen))


def test_views_from_different_memory_are_copied(batch) -> None:
    parts = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5)
    assert torch.equal(joined_pixels(views_of(parts, batch)), torch.cat(parts))
