"""ReSim and SetSim as methods: who is compared with whom."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from builders.batches.two_views import IMAGES, two_views
from builders.runs.window_runs import NAMES, SIZE, built, small_method
from builders.tasks.tiny_pyramid import TinyPyramid
from references.methods.sets import slow_attention_pairs, slow_set_loss
from references.methods.windows import slow_pool, slow_window_loss
from torch import Tensor

from clove_ssl.backbones.build import build_backbone
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.config.views import ViewsConfig
from clove_ssl.errors import UserError
from clove_ssl.methods.base import Progress
from clove_ssl.methods.config import TeacherConfig
from clove_ssl.methods.contrastive import info_nce
from clove_ssl.methods.recipes import recipe
from clove_ssl.methods.resim.config import ReSimConfig, WindowConfig
from clove_ssl.methods.resim.method import negatives_of
from clove_ssl.methods.resim.windows import find_windows, sliding_windows
from clove_ssl.methods.setsim.config import SetsConfig
from clove_ssl.views.batch import ViewBatch
from clove_ssl.views.draw.crops import UNIFORMS_PER_VIEW
from clove_ssl.views.draw.parameters import draw_views
from clove_ssl.views.geometry import match_cells

START = Progress(step=0, total_steps=10)
STILL = TeacherConfig(momentum=1.0)
TOGETHER = {"c4": IMAGES, "c3": 2}  # images that share negatives in the small config


def boxes_of(batch: ViewBatch, coordinates: Any) -> list[Tensor]:
    return [view.geometry.signed_boxes(coordinates) for view in batch.views]


def slow_level(batch: ViewBatch, query: Tensor, key: Tensor, level: str, config: Any) -> float:
    """The loss of one level, window by window."""
    stride, options = {"c4": 16, "c3": 8}[level], getattr(config, level)
    windows = sliding_windows(SIZE["resim"], options.window, options.stride)
    found = find_windows(windows, *boxes_of(batch, "pixel"), size=SIZE["resim"])
    assert 0 < found.inside.sum() < found.inside.numel()

    def pooled(maps: Tensor, boxes: Tensor) -> Tensor:
        rows = [
            [slow_pool(m, b, stride) for b in bs.tolist()]
            for m, bs in zip(maps, boxes, strict=True)
        ]
        return torch.stack([torch.stack(row) for row in rows])

    return slow_window_loss(
        pooled(query, windows.expand(IMAGES, -1, -1)),
        pooled(key, found.boxes),
        found.inside,
        key,
        temperature=0.2,
        images=TOGETHER[level],
    )


def test_resim_adds_the_losses_of_images_and_of_both_levels() -> None:
    weighted = WindowConfig(window=24, stride=12, weight=0.5)
    config = small_method("resim", teacher=STILL, shuffle_groups=0, c4=weighted)
    method, batch = built(config), two_views(config)
    with torch.no_grad():
        query = method.encoder(batch.views[0].pixels)
        key = method.teacher.module(batch.views[1].pixels)
    expected = info_nce(
        F.normalize(query.image), F.normalize(key.image), method.queue.entries, temperature=0.2
    ).item()
    for level, weight in (("c4", 0.5), ("c3", 1.0)):
        maps = getattr(query, level), getattr(key, level)
        expected += weight * slow_level(batch, *maps, level, config)
    assert method(batch, START).loss.item() == pytest.approx(expected, rel=1e-9)


def test_resim_shuffles_all_that_the_teacher_gives() -> None:
    config = small_method("resim", teacher=STILL)
    method, batch = built(config), two_views(config)
    pixels = batch.views[1].pixels
    shuffled = method._key(pixels)
    plain = method.teacher.module(pixels)
    for mine, theirs in zip(shuffled, plain, strict=True):
        assert mine.shape == theirs.shape
        assert not torch.allclose(mine, theirs)
    method.eval()
    for mine, theirs in zip(method._key(pixels), method.teacher.module(pixels), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_resim_without_common_windows_still_contrasts_images() -> None:
    config = small_method("resim")
    method = built(config)
    output = method(two_views(config, apart=True), START)
    assert output.loss.detach() == output.metrics["loss_global"]
    assert output.metrics["windows_kept_c4"] == output.metrics["windows_kept_c3"] == 0
    output.loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in method.encoder.parameters())


def test_resim_draws_both_views_with_one_flip_unless_told_otherwise() -> None:
    uniforms = np.random.default_rng(0).random((50, 2, UNIFORMS_PER_VIEW))
    for shared in (True, False):
        config = ReSimConfig(shared_flip=shared)
        first, second = draw_views(uniforms, [90] * 50, [120] * 50, config.view_specs()).flip.T
        assert 0 < first.sum() < 50
        assert bool((first == second).all()) is shared


def test_negatives_come_from_groups_of_images() -> None:
    key_map = torch.randn(4, 3, 5, 4)
    assert negatives_of(key_map, 0).shape == (1, 4 * 3 * 2, 3)
    assert negatives_of(key_map, 2).shape == (2, 2 * 3 * 2, 3)
    torch.testing.assert_close(negatives_of(key_map, 2)[1], negatives_of(key_map[2:], 0)[0])
    assert torch.equal(negatives_of(key_map, 32), negatives_of(key_map, 0))
    with pytest.raises(UserError, match="negative-images 2"):
        negatives_of(key_map, 3)


@pytest.mark.parametrize("kind", ["both", "attention", "geometry"])
@pytest.mark.parametrize("nearest", ["none", "matched", "all"])
def test_setsim_contrasts_cells_with_sets(kind: str, nearest: str) -> None:
    sets = SetsConfig(kind=kind, nearest=nearest, attention=0.3)  # type: ignore[arg-type]
    config = small_method("setsim", teacher=STILL, shuffle_groups=0, sets=sets, dense_weight=0.3)
    method, batch = built(config), two_views(config)
    student, teacher = method.encoder, method.teacher.module
    with torch.no_grad():
        maps = student(batch.views[0].pixels), teacher(batch.views[1].pixels)
        query, key = student.embed(maps[0]), teacher.embed(maps[1])
    pairs = slow_pairs(*maps, batch, sets)
    assert pairs.any()
    between_cells = slow_set_loss(
        F.normalize(query.cells, dim=2),
        F.normalize(key.cells, dim=2),
        pairs,
        method.dense_queue.entries,
        0.2,
    )
    between_images = info_nce(
        F.normalize(query.image), F.normalize(key.image), method.queue.entries, temperature=0.2
    )
    expected = 0.7 * between_images.item() + 0.3 * sum(between_cells) / IMAGES
    assert method(batch, START).loss.item() == pytest.approx(expected, rel=1e-9)


def slow_pairs(query_map: Tensor, key_map: Tensor, batch: ViewBatch, sets: SetsConfig) -> Tensor:
    grid = (query_map.shape[2], query_map.shape[3])
    pairs = torch.zeros(IMAGES, grid[0] * grid[1], grid[0] * grid[1], dtype=torch.bool)
    if sets.kind != "geometry":
        pairs |= slow_attention_pairs(query_map, key_map, attention=0.3, likeness=0.2)
    if sets.kind != "attention":
        pairs |= match_cells(*boxes_of(batch, "per-axis"), grid, grid, 0.5)
    for image, cell in [(b, i) for b in range(IMAGES) for i in range(pairs.shape[1])]:
        if sets.nearest == "all" or (sets.nearest == "matched" and pairs[image, cell].any()):
            keys = key_map[image].flatten(1).T
            alike = F.cosine_similarity(query_map[image].flatten(1).T[cell], keys, dim=1)
            pairs[image, cell, alike.argmax()] = True
    return pairs


@pytest.mark.parametrize("name", NAMES)
def test_the_student_is_one_graph_for_the_compiler(name: str) -> None:
    config = small_method(name)
    network, batch = built(config).encoders()[0].eval(), two_views(config)
    compiled = torch.compile(network, backend="eager", fullgraph=True)
    found, expected = compiled(batch.views[0].pixels), network(batch.views[0].pixels)
    torch.testing.assert_close(found, expected)


def test_resim_needs_all_stages_of_its_backbone() -> None:
    backbone = build_backbone(BackboneConfig(name="resnet18", stage="c4"))
    with pytest.raises(UserError, match="Leave out --backbone.stage"):
        small_method("resim").build(backbone)


def test_resim_takes_views_of_any_size_that_hold_its_windows() -> None:
    config = small_method("resim", size=72)  # maps of 9 and 4 cells
    assert built(config)(two_views(config), START).loss.isfinite()
    assert TinyPyramid()(torch.zeros(1, 3, 72, 72))["c4"].shape[2:] == (4, 4)
    with pytest.raises(UserError, match="global-size 49"):
        ReSimConfig(views=ViewsConfig(local_count=0, global_size=48))


def test_a_flip_of_its_own_leaves_the_first_view_of_resim_as_it_is() -> None:
    small = recipe("resim-r18-small", Path("unused")).method
    assert replace(small, shared_flip=False).view_specs()[0] == small.view_specs()[0]
