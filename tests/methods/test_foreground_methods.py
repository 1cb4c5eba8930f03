"""CP2 and DetCo as methods: who is compared with whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from builders.batches.vector_batches import batch_of_maps
from builders.runs.foreground_runs import PATCHES, SIZE, batch, build, small_method
from references.methods.contrastive import slow_info_nce
from torch import Tensor, nn

from clove_ssl.backbones.build import STAGES, build_backbone
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.errors import UserError
from clove_ssl.methods.base import Progress
from clove_ssl.methods.config import HeadConfig, TeacherConfig
from clove_ssl.methods.contrastive import info_nce
from clove_ssl.methods.cp2.loss import align_foreground
from clove_ssl.methods.cp2.method import AtrousPyramid
from clove_ssl.methods.detco.method import contrast_levels, weigh_levels
from clove_ssl.methods.recipes import recipe
from clove_ssl.methods.shuffling import batch_order
from clove_ssl.views.pasting import foreground_mask

IMAGES = 8
START = Progress(step=0, total_steps=10)


def method_of(name: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    method = build(small_method(name, size=SIZE, **changes))
    with torch.no_grad():  # a teacher unlike its student, so that mistaking them shows
        for parameter in method.teacher.parameters():  # type: ignore[operator, union-attr]
            parameter.add_(0.1 * torch.randn_like(parameter))
    return method


def still(name: str, **changes: Any) -> Any:
    return method_of(name, teacher=TeacherConfig(momentum=1.0), **changes)


def shuffled(method: Any, images: Tensor, step: int) -> Tensor:
    """The teacher's outputs of two shuffled groups, placed one by one."""
    rows: dict[int, Tensor] = {}
    for group in batch_order(IMAGES, step).chunk(2):
        rows.update(zip(group.tolist(), method.teacher.module(images[group]), strict=True))
    return torch.stack([rows[image] for image in range(IMAGES)])


# --- CP2


def test_cp2_contrasts_foregrounds_and_aligns_their_cells() -> None:
    method, views = still("cp2", dense_weight=0.7), batch("cp2")
    first, second = views.views
    maps = method.encoder(first.pixels), shuffled(method, second.pixels, 4)
    cells = [F.normalize(each, dim=1) for each in maps]
    masks = [foreground_mask(view.foreground, SIZE, maps[0].shape[2:]) for view in (first, second)]
    pooled = []
    for each, mask in zip(cells, masks, strict=True):
        rows = [image[:, inside].mean(1) for image, inside in zip(each, mask, strict=True)]
        pooled.append(F.normalize(torch.stack(rows), dim=1))
    between_images = info_nce(*pooled, method.queue.entries, temperature=0.2)
    between_cells = align_foreground(*cells, *masks).mean()
    output = method(views, Progress(4, 10))
    torch.testing.assert_close(output.loss, between_images + 0.7 * between_cells)
    torch.testing.assert_close(output.metrics["loss_dense"], between_cells.detach())
    share = torch.stack([mask.float().mean() for mask in masks])[0]
    torch.testing.assert_close(output.metrics["foreground_cells"], share)


def test_cp2_does_not_care_what_lies_in_the_background_of_the_key_cells() -> None:
    """Where every cell sees its own pixels only, the background of the key has no part at all."""
    method, views = still("cp2", shuffle_groups=0), batch("cp2")
    method.eval()
    for encoder in (method.encoder, method.teacher.module):
        encoder.pyramid = nn.Identity()
        encoder.head = nn.Conv2d(6, 8, 1).double()
    first, second = views.views
    cells = foreground_mask(second.foreground, SIZE, (4, 4))
    outside = ~cells.repeat_interleave(4, 1).repeat_interleave(4, 2)[:, None]
    changed = type(second)(
        torch.where(outside, 9.0, second.pixels), second.geometry, second.role, second.foreground
    )
    other = type(views)((first, changed), views.index)
    assert outside.any()
    torch.testing.assert_close(method(views, START).loss, method(other, START).loss)


def test_cp2_refuses_views_that_were_not_pasted() -> None:
    plain = batch_of_maps(*(view.pixels for view in batch("cp2").views))
    with pytest.raises(ValueError, match="not pasted"):
        method_of("cp2")(plain, START)


def test_the_pyramid_sees_near_far_and_everything() -> None:
    torch.manual_seed(0)
    pyramid = AtrousPyramid(2, 3, (1, 3)).double().eval()
    spot = torch.zeros(1, 2, 9, 9, dtype=torch.float64)
    spot[..., 4, 4] = 1.0
    reached = [branch[0](spot).any(1)[0].nonzero().tolist() for branch in pyramid.branches]
    assert reached[0] == [[4, 4]]
    assert reached[1] == [[row, column] for row in (1, 4, 7) for column in (1, 4, 7)]
    assert pyramid(spot).shape == (1, 3, 9, 9)
    everywhere = pyramid.mean_branch(spot.mean((2, 3), keepdim=True)).expand(-1, -1, 9, 9)
    rows = [everywhere, *(branch(spot) for branch in pyramid.branches)]
    torch.testing.assert_close(pyramid(spot), pyramid.mix(torch.cat(rows, dim=1)))


def test_the_published_recipe_dilates_the_last_stage() -> None:
    config = recipe("cp2-r50-200ep", Path("unused"))
    assert config.backbone.output_stride == 16
    assert recipe("cp2-r18-small", Path("unused")).backbone.output_stride == 32


# --- DetCo


def test_detco_sums_three_contrasts_at_four_levels() -> None:
    weights = (0.3, 0.0, 2.0, 1.0)
    method, views = still("detco", level_weights=weights), batch("detco")
    progress = Progress(3, 10)
    pixels = [view.pixels for view in views.views]
    first, second = (
        torch.stack(pixels[2 + start : 2 + start + PATCHES], 1) for start in (0, PATCHES)
    )
    query = [method.encoder(each) for each in (pixels[0], first)]
    key = [shuffled(method, each, 3) for each in (pixels[1], second)]
    query, key = ([F.normalize(each, dim=-1) for each in pair] for pair in (query, key))
    total = 0.0
    for level, weight in enumerate(weights):
        for q, k, queues in ((0, 0, "whole"), (1, 1, "patch"), (1, 0, "whole")):
            bank = getattr(method, f"{queues}_queues").entries()[level]
            total += weight * slow_info_nce(query[q][:, level], key[k][:, level], bank, 0.2)
    output = method(views, progress)
    assert output.loss.item() == pytest.approx(total, rel=1e-6)
    parts = [output.metrics[f"loss_{name}"] for name in ("global", "local", "local_to_global")]
    torch.testing.assert_close(sum(parts), output.loss.detach())


def test_patches_of_an_image_are_joined_in_their_order() -> None:
    method = method_of("detco").eval()
    pixels = torch.stack([view.pixels for view in batch("detco").views[2 : 2 + PATCHES]], 1)
    found = method.encoder(pixels)
    for image in range(3):
        for level, stage in enumerate(STAGES):
            maps = [method.encoder.backbone(patch[None])[stage] for patch in pixels[image]]
            row = torch.cat([each.mean((2, 3)) for each in maps], dim=1)
            expected = method.encoder.patch_heads[level](row)[0]
            torch.testing.assert_close(found[image, level], expected)
    assert not torch.allclose(found, method.encoder(pixels.flip(1)))


def test_patches_reach_the_backbone_in_the_memory_layout_of_views() -> None:
    method, seen = method_of("detco"), []
    for encoder in (method.encoder, method.teacher.module):
        encoder.backbone.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    views = batch("detco").views
    for layout in (torch.channels_last, torch.contiguous_format):
        laid = [view.pixels.contiguous(memory_format=layout) for view in views]
        method(batch_of_maps(*laid), START)
        assert len(seen) == 2 * (1 + 2)  # the teacher sees two shuffled groups
        assert all(images.is_contiguous(memory_format=layout) for images in seen)
        seen.clear()


def test_heads_are_as_wide_as_what_they_get_unless_told() -> None:
    told = method_of("detco").encoder
    assert [head.fc1.out_features for head in told.whole_heads] == [12] * 4
    assert [head.fc1.out_features for head in told.patch_heads] == [10] * 4
    free = method_of("detco", head=HeadConfig(hidden=0, out=8), local_hidden=0).encoder
    assert [head.fc1.out_features for head in free.whole_heads] == [3, 4, 5, 6]
    assert [head.fc1.out_features for head in free.patch_heads] == [4 * c for c in (3, 4, 5, 6)]


def test_levels_are_weighed_and_gradients_exact() -> None:
    g = torch.Generator().manual_seed(0)
    query, key = (
        F.normalize(torch.randn(3, 2, 4, generator=g, dtype=torch.float64), dim=-1) for _ in "ab"
    )
    banks = list(F.normalize(torch.randn(2, 5, 4, generator=g, dtype=torch.float64), dim=-1))
    losses = contrast_levels(query, key, banks, temperature=0.2).loss
    expected = sum(
        weight * slow_info_nce(query[:, level], key[:, level], banks[level], 0.2)
        for level, weight in enumerate((0.5, 2.0))
    )
    assert weigh_levels(losses, (0.5, 2.0)).item() == pytest.approx(expected)

    def loss(q: Tensor, k: Tensor) -> Tensor:
        return weigh_levels(contrast_levels(q, k, banks, temperature=0.2).loss, (0.5, 2.0))

    assert torch.autograd.gradcheck(loss, (query.requires_grad_(), key.requires_grad_()))
    with pytest.raises(ValueError, match="2 levels"):
        contrast_levels(query, key, banks[:1], temperature=0.2)


def test_detco_needs_all_stages() -> None:
    backbone = build_backbone(BackboneConfig(name="resnet18", stage="c4"))
    with pytest.raises(UserError, match="Leave out --backbone.stage"):
        small_method("detco").build(backbone)


@pytest.mark.parametrize("weights", [(0.0, 0.0, 0.0, 0.0), (1.0, 1.0, 1.0, -1.0)])
def test_impossible_level_weights_are_refused(weights: tuple[float, ...]) -> None:
    with pytest.raises(UserError, match="level_weights"):
        small_method("detco", level_weights=weights)


# --- recipes


def test_the_views_of_detco_are_two_and_twice_nine_patches() -> None:
    specs = recipe("detco-r50-200ep", Path("unused")).method.view_specs()
    assert [spec.size for spec in specs] == [224] * 2 + [64] * 18
    assert [spec.role for spec in specs] == ["global"] * 2 + ["local"] * 18
    assert [spec.patch.first for spec in specs if spec.patch] == [2] * 9 + [11] * 9
