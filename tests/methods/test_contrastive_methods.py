"""BYOL, MoCo and DenseCL as methods: who is compared with whom."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from builders.batches.vector_batches import batch_of_maps
from builders.runs.contrastive_runs import NAMES, small_method
from builders.tasks.tiny_backbone import TinyBackbone
from torch import Tensor

from clove_ssl.methods.base import Progress
from clove_ssl.methods.config import PooledViewsConfig, TeacherConfig
from clove_ssl.methods.contrastive import info_nce, most_similar_cells
from clove_ssl.methods.recipes import all_recipes
from clove_ssl.methods.shuffling import batch_order
from clove_ssl.methods.teacher_student import TeacherStudentMethod
from clove_ssl.views.batch import ViewBatch

IMAGES = 6
START = Progress(step=0, total_steps=10)
QUEUED = ("moco", "densecl")


def method_of(config: PooledViewsConfig) -> Any:
    torch.manual_seed(0)
    method = config.build(TinyBackbone()).double()  # type: ignore[arg-type]
    with torch.no_grad():  # a teacher unlike its student, so that mistaking them shows
        for parameter in method.teacher.parameters():  # type: ignore[operator, union-attr]
            parameter.add_(0.1 * torch.randn_like(parameter))
    return method


def small(name: str, **changes: Any) -> PooledViewsConfig:
    return small_method(name, size=12, **changes)


def batch(seed: int = 0) -> ViewBatch:
    g = torch.Generator().manual_seed(seed)
    views = torch.randn(2, IMAGES, 3, 12, 12, generator=g, dtype=torch.float64)
    return batch_of_maps(*views)


def still(name: str, **changes: Any) -> PooledViewsConfig:
    return small(name, teacher=TeacherConfig(momentum=1.0), **changes)


def shuffled_maps(method: TeacherStudentMethod[Any], images: Tensor, step: int) -> Tensor:
    """The teacher's backbone maps of two shuffled groups, placed one by one."""
    groups = batch_order(IMAGES, step).chunk(2)
    maps: dict[int, Tensor] = {}
    for group in groups:
        computed = method.teacher.module.backbone.features(images[group])
        maps.update(zip(group.tolist(), computed, strict=True))
    return torch.stack([maps[i] for i in range(IMAGES)])


def test_moco_contrasts_the_first_view_with_shuffled_keys_of_the_second() -> None:
    method, views = method_of(still("moco")), batch()
    progress = Progress(4, 10)
    keys = method.teacher.module.head(shuffled_maps(method, views.views[1].pixels, 4).mean((2, 3)))
    query = method.encoder(views.views[0].pixels)
    bank = method.queue.entries.clone()
    expected = info_nce(F.normalize(query), F.normalize(keys), bank, temperature=0.2)
    torch.testing.assert_close(method(views, progress).loss, expected)
    plain = method_of(still("moco", shuffle_groups=0))
    assert not torch.allclose(plain(views, progress).loss, expected)


def test_densecl_weighs_images_and_cells() -> None:
    method, views = method_of(still("densecl", dense_weight=0.3)), batch()
    query_map = method.encoder.backbone.features(views.views[0].pixels)
    key_map = shuffled_maps(method, views.views[1].pixels, 0)
    student, teacher = method.encoder, method.teacher.module
    q, k = (
        each.image_head(x.mean((2, 3))) for each, x in ((student, query_map), (teacher, key_map))
    )
    between_images = info_nce(F.normalize(q), F.normalize(k), method.queue.entries, temperature=0.2)
    cells, key_cells = student.cell_head(query_map), teacher.cell_head(key_map)
    rows, partners = [], []
    for image, nearest in enumerate(most_similar_cells(query_map, key_map).tolist()):
        for cell, partner in enumerate(nearest):
            rows.append(cells[image].flatten(1)[:, cell])
            partners.append(key_cells[image].flatten(1)[:, partner])
    between_cells = info_nce(
        F.normalize(torch.stack(rows)),
        F.normalize(torch.stack(partners)),
        method.dense_queue.entries,
        temperature=0.2,
    )
    output = method(views, START)
    torch.testing.assert_close(output.loss, 0.7 * between_images + 0.3 * between_cells)
    torch.testing.assert_close(output.metrics["loss_dense"], between_cells.detach())


def test_densecl_can_begin_with_images_alone() -> None:
    method = method_of(still("densecl", dense_from_step=2))
    early, late = (method(batch(), Progress(step, 10)) for step in (1, 2))
    torch.testing.assert_close(early.loss.detach(), early.metrics["loss_global"])
    halves = (late.metrics["loss_global"] + late.metrics["loss_dense"]) / 2
    torch.testing.assert_close(late.loss.detach(), halves)


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize(("form", "factor"), [("paper", 1.0), ("release", 0.5)])
def test_byol_predicts_each_view_from_the_other(joint: bool, form: str, factor: float) -> None:
    method, views = method_of(still("byol", joint_views=joint, form=form)), batch()
    a, b = (view.pixels for view in views.views)
    if joint:
        p, q = method.predictor(method.encoder(torch.cat([a, b]))).chunk(2)
        s, t = method.teacher(torch.cat([a, b])).chunk(2)
    else:
        p, q = (method.predictor(method.encoder(images)) for images in (a, b))
        s, t = (method.teacher(images) for images in (a, b))
    cosines = torch.stack([F.cosine_similarity(p, t).mean(), F.cosine_similarity(q, s).mean()])
    output = method(views, START)
    torch.testing.assert_close(output.loss, factor * (2 - 2 * cosines).sum())
    torch.testing.assert_close(output.metrics["cos_positive"], cosines.mean().detach())


def test_moco_views_are_drawn_alike_and_byol_views_are_not() -> None:
    views = {
        name: all_recipes()[f"{name}-r50-200ep"](Path("unused")).method.view_specs()
        for name in NAMES
    }
    assert views["moco"][0] == views["moco"][1]
    assert views["moco"] == views["densecl"]
    first, second = views["byol"]
    assert (first.blur_probability, second.blur_probability) == (1.0, 0.1)
    assert replace(second, blur_probability=1.0, solarize_probability=0.0) == first
