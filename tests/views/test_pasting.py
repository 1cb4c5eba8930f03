"""Copy-paste: pixels, masks and losses of pasted views."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from builders.batches.view_batches import assert_close, draw, grey_levels, made_up_photos
from PIL import Image
from references.methods.copy_paste import slow_alignment, slow_paste, slow_pool
from torch import Tensor

from clove_ssl.config.pretraining import DataConfig
from clove_ssl.config.views import ViewsConfig
from clove_ssl.data.order import Draws
from clove_ssl.data.reading import RenderedBatch, RenderedViews, view_batch
from clove_ssl.data.sources import open_source
from clove_ssl.errors import UserError
from clove_ssl.methods.cp2.config import CP2Config
from clove_ssl.methods.cp2.loss import align_foreground, pool_foreground
from clove_ssl.views.pasting import foreground_boxes, foreground_mask, neighbours, paste_views
from clove_ssl.views.render.gpu import render_batch

SPECS = CP2Config(views=ViewsConfig(global_size=32, local_count=0)).view_specs()
PHOTOS = made_up_photos(
    [(40, 50), (30, 80), (64, 64), (90, 33), (70, 70), (40, 40), (50, 60), (33, 44)]
)


def noise(images: int, dtype: torch.dtype = torch.uint8) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    shape = (images, 3, 32, 32)
    return [torch.randint(0, 256, shape, generator=g).to(dtype) for _ in SPECS]


# --- pixels


@pytest.mark.parametrize("images", [2, 3, 8])
def test_pasted_pixels_are_those_of_the_loop(images: int) -> None:
    parameters, views = draw(PHOTOS[:images], SPECS), noise(images)
    shown = paste_views(views, parameters, SPECS)
    for number, spec in enumerate(SPECS):
        assert spec.paste is not None
        others = neighbours(images, spec.paste.neighbour).tolist()
        for image, other in enumerate(others):
            rectangle = parameters.paste[image, number].tolist()
            expected = slow_paste(views[number][image], views[number][other], rectangle)
            assert torch.equal(shown[number][image], expected)


def test_the_two_views_of_an_image_lie_on_different_images() -> None:
    assert neighbours(8, 1).tolist() == [1, 2, 3, 0, 5, 6, 7, 4]
    assert neighbours(8, 2).tolist() == [2, 3, 0, 1, 6, 7, 4, 5]
    assert neighbours(3, 1).tolist() == [1, 2, 0]
    assert neighbours(3, 2).tolist() == [2, 0, 1]
    assert neighbours(2, 1).tolist() == neighbours(2, 2).tolist() == [1, 0]


@pytest.mark.parametrize("images", range(2, 14))
@pytest.mark.parametrize("which", [1, 2, 3, 7])
def test_no_image_is_its_own_background(images: int, which: int) -> None:
    others = neighbours(images, which)
    assert (others != torch.arange(images)).all()
    assert sorted(others.tolist()) == list(range(images))


def test_processes_that_share_a_batch_paste_the_same() -> None:
    parameters, views = draw(PHOTOS, SPECS), noise(8)
    together = paste_views(views, parameters, SPECS)
    for start in (0, 4):
        half = draw(PHOTOS, SPECS)
        rows = slice(start, start + 4)
        part = type(half)(**{name: value[rows] for name, value in vars(half).items()})
        shown = paste_views([view[rows] for view in views], part, SPECS)
        for mine, whole in zip(shown, together, strict=True):
            assert torch.equal(mine, whole[rows])


def test_one_image_alone_has_no_background() -> None:
    with pytest.raises(UserError, match="--micro-batch 4"):
        paste_views(noise(1), draw(PHOTOS[:1], SPECS), SPECS)


def test_views_that_are_not_pasted_stay_what_they_are() -> None:
    plain = ViewsConfig(global_size=32, local_count=0).specs()
    views, parameters = noise(4), draw(PHOTOS[:4], plain)
    for before, after in zip(views, paste_views(views, parameters, plain), strict=True):
        assert before is after
    assert foreground_boxes(parameters, 0, plain[0]) is None


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_pasting_keeps_type_and_memory_layout(layout: torch.memory_format) -> None:
    views = [view.to(torch.bfloat16, memory_format=layout) for view in noise(4)]
    for view in paste_views(views, draw(PHOTOS[:4], SPECS), SPECS):
        assert view.dtype == torch.bfloat16
        assert view.is_contiguous(memory_format=layout)


# --- the whole way, on both renderers


@pytest.fixture
def read(tmp_path: Path) -> tuple[RenderedBatch, list[Tensor]]:
    """A batch that CPU workers rendered, and the photos it was made of."""
    for number, photo in enumerate(PHOTOS):
        Image.fromarray(photo.permute(1, 2, 0).numpy()).save(tmp_path / f"{number}.png")
    config = DataConfig(source=str(tmp_path))
    reader = RenderedViews(open_source(config), SPECS, config, seed=5)
    return reader[Draws(np.zeros(8, int), np.arange(8))], PHOTOS


def test_both_renderers_paste_alike(read: tuple[RenderedBatch, list[Tensor]]) -> None:
    rendered, photos = read
    parameters = rendered.parameters
    on_device = render_batch(photos, parameters, SPECS, dtype=torch.float32)
    for mine, theirs in zip(
        paste_views(on_device, parameters, SPECS), rendered.pixels, strict=True
    ):
        levels = grey_levels(mine)
        assert_close(levels, theirs.float(), mean=0.4, nearly_all=3.0, largest=6.0, about="pasted")


def test_a_batch_says_where_its_own_images_are(read: tuple[RenderedBatch, list[Tensor]]) -> None:
    rendered, _ = read
    batch = view_batch(rendered, SPECS)
    for number, view in enumerate(batch.views):
        assert view.foreground is not None
        top, left, height, width = rendered.parameters.paste[:, number].T
        expected = np.stack([left, top, left + width, top + height], axis=1)
        np.testing.assert_array_equal(view.foreground, expected)
    moved = batch.to("meta").views[1].foreground
    assert moved is not None
    assert moved.device.type == "meta"
    floats = batch.normalized(torch.float32, channels_last=False).views[0]
    assert floats.foreground is batch.views[0].foreground


# --- masks


def test_a_mask_worked_by_hand() -> None:
    # 8 pixels in 4 cells a side: centres at 1, 3, 5 and 7; the right and lower edges are outside.
    mask = foreground_mask(torch.tensor([[1.0, 2.0, 7.0, 5.0]]), 8, (4, 4))
    assert mask.int().tolist() == [[[0, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]]


def test_a_mask_of_pixels_is_the_rectangle_itself() -> None:
    boxes = foreground_boxes(draw(PHOTOS[:3], SPECS), 0, SPECS[0])
    assert boxes is not None
    mask = foreground_mask(boxes, 32, (32, 32))
    for inside, (x0, y0, x1, y1) in zip(mask, boxes.int().tolist(), strict=True):
        assert inside.sum() == (x1 - x0) * (y1 - y0)
        assert inside[y0:y1, x0:x1].all()


def test_cells_are_sampled_at_their_middle_pixel() -> None:
    boxes = torch.tensor([[8.0, 9.0, 120.0, 200.0], [0.0, 0.0, 24.0, 25.0]])
    pixels = foreground_mask(boxes, 224, (224, 224))
    assert torch.equal(foreground_mask(boxes, 224, (14, 14)), pixels[:, 8::16, 8::16])


# --- losses


def maps(seed: int, shape: tuple[int, ...] = (2, 3, 2, 3)) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(shape, generator=g, dtype=torch.float64), dim=1)


MASK = torch.tensor([[[1, 0, 1], [1, 0, 0]], [[0, 0, 1], [1, 1, 1]]]).bool()
OTHER = torch.tensor([[[1, 1], [0, 1], [0, 0]], [[0, 1], [0, 0], [0, 0]]]).bool()


def test_pooling_is_the_mean_of_the_foreground() -> None:
    torch.testing.assert_close(
        pool_foreground(maps(0), MASK), torch.tensor(slow_pool(maps(0), MASK)).double()
    )


def test_the_dense_loss_is_that_of_the_loop() -> None:
    query, key = maps(0), maps(1, (2, 3, 3, 2))
    found = align_foreground(query, key, MASK, OTHER)
    assert found.tolist() == pytest.approx(slow_alignment(query, key, MASK, OTHER), rel=1e-12)


def test_the_dense_loss_worked_by_hand() -> None:
    # One channel: query cells 1 and -1, the key's only cell 1; the first query cell is foreground.
    query, key = torch.tensor([[[[1.0, -1.0]]]]), torch.ones(1, 1, 1, 1)
    front, here = torch.tensor([[[True, False]]]), torch.tensor([[[True]]])
    loss = align_foreground(query, key, front, here)
    assert loss.item() == pytest.approx(np.log(1 + np.exp(-2)))
    both = align_foreground(query, key, torch.ones_like(front), here)
    assert both.item() == pytest.approx(np.log(1 + np.exp(-2)) + 1)


def test_losses_have_the_gradient_of_their_value() -> None:
    query, key = maps(0).requires_grad_(), maps(1).requires_grad_()
    assert torch.autograd.gradcheck(lambda q: pool_foreground(q, MASK), (query,))
    assert torch.autograd.gradcheck(
        lambda q, k: align_foreground(q, k, MASK, MASK.flip(0)), (query, key)
    )


def test_an_image_without_foreground_has_no_loss_and_a_finite_gradient() -> None:
    query, key = maps(0).requires_grad_(), maps(1)
    empty = torch.zeros_like(MASK)
    for here, there in ((empty, MASK), (MASK, empty)):
        loss = align_foreground(query, key, here, there)
        assert loss.tolist() == [0.0, 0.0]
        (gradient,) = torch.autograd.grad(loss.sum(), query)
        assert not gradient.any()
    assert not pool_foreground(query, empty).any()


def test_the_dense_loss_is_computed_in_fp32_under_autocast() -> None:
    query, key = maps(0).bfloat16(), maps(1).bfloat16()
    expected = align_foreground(query.float(), key.float(), MASK, MASK)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = align_foreground(query, key, MASK, MASK)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, expected)
