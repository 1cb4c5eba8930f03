"""InsCon, after the abstract: mosaics, regions, pull and push against slow references."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from builders.batches.two_views import IMAGES, two_views
from builders.runs.contrastive_runs import small_method
from builders.runs.method_runs import tiny_built
from hypothesis import given
from hypothesis import strategies as st
from references.geometry import relative_distances
from references.methods.inscon import slow_mosaic, slow_pull_and_push, slow_regions
from torch import Tensor

from clove_ssl.errors import UserError
from clove_ssl.methods.base import Progress
from clove_ssl.methods.config import TeacherConfig
from clove_ssl.methods.contrastive import info_nce, mean_of_counted
from clove_ssl.methods.inscon.config import InsConConfig, MosaicConfig
from clove_ssl.methods.inscon.loss import matches_in_images, pull_and_push
from clove_ssl.methods.inscon.mosaic import assemble, downscale, split_regions
from clove_ssl.methods.shuffling import batch_order

SQUARE = MosaicConfig(rows=2, columns=2, tile=12)


def random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def units(*shape: int, seed: int = 0) -> Tensor:
    return F.normalize(random(*shape, seed=seed), dim=-1)


def some(*shape: int, seed: int = 0, share: float = 0.3) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < share


def small(**changes: Any) -> InsConConfig:
    config = small_method("inscon", size=16, **changes)
    assert isinstance(config, InsConConfig)
    return config


@given(
    rows=st.integers(1, 3),
    columns=st.integers(1, 3),
    images=st.integers(1, 3),
    shift=st.integers(0, 9),
)
def test_photos_lie_in_their_places_and_are_found_there(
    rows: int, columns: int, images: int, shift: int
) -> None:
    layout, photos = (rows, columns), images * rows * columns
    tiles = random(photos, 2, 4, 4, seed=shift)
    made = assemble(tiles, layout, 4, shift=shift)
    assert torch.equal(made, slow_mosaic(tiles, layout, shift))
    assert torch.equal(split_regions(made, layout, shift=shift), tiles)
    maps = random(images, 3, 2 * rows, 5 * columns)
    regions = split_regions(maps, layout, shift=shift)
    assert torch.equal(regions, slow_regions(maps, layout, shift))


@pytest.mark.parametrize("shift", range(4))
def test_cells_of_a_region_show_the_pixels_of_its_photo(shift: int) -> None:
    # A network without overlap: every cell is the mean of its own pixels.
    pixels = random(8, 3, 16, 16)
    maps = F.avg_pool2d(assemble(pixels, (2, 2), 12, shift=shift), 4)
    cells = F.avg_pool2d(downscale(pixels, 12), 4)
    torch.testing.assert_close(split_regions(maps, (2, 2), shift=shift), cells)


def test_a_change_of_one_photo_stays_in_its_region() -> None:
    pixels = random(8, 3, 16, 16)
    before = assemble(pixels, (2, 2), 12)
    pixels[6] += 1  # the third photo of the second image: bottom left
    changed = (assemble(pixels, (2, 2), 12) != before).any(1)
    expected = torch.zeros_like(changed)
    expected[1, 12:, :12] = True
    assert torch.equal(changed, expected)


def test_downscaling_keeps_places_and_means() -> None:
    ramp = torch.linspace(0, 1, 16, dtype=torch.float64)
    wide = (ramp[None, :] + 2 * ramp[:, None]).expand(1, 3, 16, 16)
    small_one = downscale(wide, 8)
    torch.testing.assert_close(small_one.mean(), wide.mean())
    # Inside, an even ramp is its value at the centre of the new pixel.
    centres = (torch.arange(8, dtype=torch.float64) * 2 + 0.5) / 15
    expected = centres[None, :] + 2 * centres[:, None]
    torch.testing.assert_close(small_one[0, 0, 1:-1, 1:-1], expected[1:-1, 1:-1])
    assert downscale(wide, 16) is wide


def test_the_memory_layout_of_the_views_is_kept() -> None:
    pixels = random(4, 3, 16, 16).contiguous(memory_format=torch.channels_last)
    made = assemble(pixels, (2, 2), 12)
    assert made.is_contiguous(memory_format=torch.channels_last)
    assert assemble(pixels.contiguous(), (2, 2), 12).is_contiguous()


@given(seed=st.integers(0, 1000), photos=st.integers(1, 3), temperature=st.floats(0.05, 1))
def test_pull_and_push_is_the_slow_sum(seed: int, photos: int, temperature: float) -> None:
    query, key = units(2, 2 * photos, 4, 5, seed=seed)
    matches = some(2 * photos, 4, 4, seed=seed)
    result = pull_and_push(
        query.reshape(2, -1, 5),
        key.reshape(2, -1, 5),
        matches_in_images(matches, photos),
        temperature=temperature,
    )
    slow = slow_pull_and_push(query, key, matches, photos, temperature)
    flat = [cell for photo in slow for cell in photo]
    assert result.counted.flatten().tolist() == [cell is not None for cell in flat]
    expected = torch.tensor([cell or 0.0 for cell in flat], dtype=torch.float64)
    torch.testing.assert_close(result.loss.flatten(), expected)


def test_pull_and_push_worked_by_hand() -> None:
    right, up = [1.0, 0.0], [0.0, 1.0]
    query = torch.tensor([[right, up]], dtype=torch.float64)
    key = torch.tensor([[right, right]], dtype=torch.float64)
    matches = torch.tensor([[[True, False], [False, False]]])
    result = pull_and_push(query, key, matches, temperature=0.5)
    # Cell 0 finds its match beside an equal one; cell 1 has none.
    torch.testing.assert_close(result.loss[0], torch.tensor([2.0, 1.0]).double().log())
    assert result.counted.tolist() == [[True, False]]
    assert result.positive_cosine.tolist() == [[1.0, 0.0]]
    assert result.negative_cosine.tolist() == [[1.0, 0.0]]
    assert result.found.tolist() == [[False, False]]
    other = pull_and_push(
        query, key.flip(1) * torch.tensor([[[1.0], [-1.0]]]), matches, temperature=0.5
    )
    assert other.found.tolist() == [[True, False]]


def test_the_gradient_of_pull_and_push_is_right() -> None:
    matches = matches_in_images(some(4, 3, 3), 2)
    matches[0, 0] = True  # a cell that nothing pushes
    query, key = (x.requires_grad_() for x in units(2, 2, 6, 3))

    def loss(q: Tensor, k: Tensor) -> Tensor:
        result = pull_and_push(q, k, matches, temperature=0.2)
        return mean_of_counted(result.loss, result.counted)

    assert torch.autograd.gradcheck(loss, (query, key))


def test_nothing_matches_without_a_loss_that_is_no_number() -> None:
    query, key = units(2, 1, 4, 3)
    result = pull_and_push(query, key, torch.zeros(1, 4, 4, dtype=torch.bool), temperature=0.2)
    assert mean_of_counted(result.loss, result.counted) == 0


def test_shapes_that_do_not_fit_are_refused() -> None:
    query, key = units(2, 1, 4, 3)
    with pytest.raises(ValueError, match="must be alike"):
        pull_and_push(query, key[:, :3], torch.zeros(1, 4, 3).bool(), temperature=0.2)
    with pytest.raises(ValueError, match="the cells need"):
        pull_and_push(query, key, torch.zeros(1, 4, 3).bool(), temperature=0.2)


@pytest.mark.parametrize("step", [0, 3])
@pytest.mark.parametrize("mosaic", [SQUARE, MosaicConfig(rows=1, columns=2, tile=12)])
def test_a_step_is_the_slow_one(mosaic: MosaicConfig, step: int) -> None:
    config = small(mosaic=mosaic, dense_weight=0.3, teacher=TeacherConfig(momentum=1.0))
    method, batch = tiny_built(config), two_views(config, images=2 * IMAGES)
    layout, photos = (mosaic.rows, mosaic.columns), mosaic.photos
    shift = step % photos
    first, second = (downscale(view.pixels, 12) for view in batch.views)
    student, teacher = method.encoder, method.teacher.module
    query_map = slow_regions(student.backbone.features(slow_mosaic(first, layout, 0)), layout, 0)
    whole = slow_mosaic(second, layout, shift)
    maps: dict[int, Tensor] = {}
    for group in batch_order(len(whole), step).chunk(2):
        maps.update(zip(group.tolist(), teacher.backbone.features(whole[group]), strict=True))
    key_map = slow_regions(torch.stack([maps[i] for i in range(len(whole))]), layout, shift)
    q, k = (
        F.normalize(each.image_head(x.mean((2, 3))))
        for each, x in ((student, query_map), (teacher, key_map))
    )
    between_photos = info_nce(q, k, method.queue.entries, temperature=0.2)
    cells, key_cells = (
        F.normalize(each.cell_head(x), dim=1).flatten(2).mT
        for each, x in ((student, query_map), (teacher, key_map))
    )
    boxes = [view.geometry.signed_boxes("per-axis").tolist() for view in batch.views]
    distances = [relative_distances(a, b, (3, 3), (3, 3)) for a, b in zip(*boxes, strict=True)]
    matches = torch.tensor(distances, dtype=torch.float64) < 0.7
    losses = slow_pull_and_push(cells, key_cells, matches, photos, 0.2)
    counted = [cell for photo in losses for cell in photo if cell is not None]
    output = method(batch, Progress(step, 10))
    expected = 0.7 * between_photos + 0.3 * sum(counted) / len(counted)
    torch.testing.assert_close(output.loss, expected)
    torch.testing.assert_close(output.metrics["loss_global"], between_photos.detach())


def test_the_teachers_photos_wander_by_one_place_a_step_unless_told_otherwise() -> None:
    wandering = tiny_built(small(mosaic=SQUARE))
    assert [wandering.shift_at(Progress(step, 10)) for step in range(6)] == [0, 1, 2, 3, 0, 1]
    still = tiny_built(small(mosaic=replace(SQUARE, places="same")))
    assert {still.shift_at(Progress(step, 10)) for step in range(6)} == {0}


def test_every_photo_leaves_one_key_of_its_own() -> None:
    config = small(mosaic=SQUARE, shuffle_groups=1, queue_size=8)
    method, batch = tiny_built(config), two_views(config, images=8)
    method(batch, Progress(1, 10))
    method.after_step(Progress(1, 10))
    assert len({tuple(row) for row in method.queue.entries.tolist()}) == 8


def test_photos_that_do_not_fill_their_images_are_refused() -> None:
    config = small(mosaic=SQUARE)
    with pytest.raises(UserError, match=r"4 photos into one image, and the 6 photos.*micro-batch"):
        tiny_built(config)(two_views(config, images=6), Progress(0, 10))


def test_tiles_that_cut_cells_or_enlarge_views_are_refused() -> None:
    with pytest.raises(UserError, match=r"stride 4.*--method.mosaic.tile 8"):
        tiny_built(small(mosaic=replace(SQUARE, tile=10)))
    with pytest.raises(UserError, match="would enlarge"):
        small(mosaic=replace(SQUARE, tile=20))


def test_it_says_that_it_follows_the_abstract() -> None:
    config = small()
    assert InsConConfig.status == "after the abstract"
    assert "after the abstract" in config.summary()["method"]
    assert "1x2 photos of 12 pixels" in config.summary()["views"]
