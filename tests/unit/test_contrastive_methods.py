"""BYOL, MoCo and DenseCL as methods: who is compared with whom, and who moves when."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from references.contrastive_runs import NAMES, small_method
from references.tiny_backbone import TinyBackbone
from references.vector_batches import batch_of_maps
from torch import Tensor

from clove_ssl.config.methods.clove import TeacherConfig
from clove_ssl.config.methods.pooled_views import PooledViewsConfig
from clove_ssl.config.recipes import contrastive as recipes
from clove_ssl.config.views import ViewsConfig
from clove_ssl.errors import UserError
from clove_ssl.losses.contrastive import info_nce, most_similar_cells
from clove_ssl.methods.base import Progress
from clove_ssl.methods.teaching import TaughtMethod
from clove_ssl.modules.key_bank import KeyBank
from clove_ssl.modules.shuffling import batch_order
from clove_ssl.optimizers import LARS
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


def shuffled_maps(method: TaughtMethod[Any], images: Tensor, step: int) -> Tensor:
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


@pytest.mark.parametrize("name", NAMES)
def test_the_teacher_moves_once_per_step(name: str) -> None:
    method = method_of(small(name))

    def distance() -> float:
        return float(method.health(method(batch(), open_step))["teacher_distance"])

    open_step = Progress(0, 10, closes_step=False)
    first, second = distance(), distance()
    assert first == second
    method(batch(), START)
    method.after_step(START)
    assert distance() == pytest.approx(0.9 * first, rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_the_teacher_can_follow_after_the_step(name: str) -> None:
    teacher = TeacherConfig(momentum=0.5, final_momentum=0.5, update="after-step")
    method = method_of(small(name, teacher=teacher))
    before = [p.clone() for p in method.teacher.parameters()]
    method(batch(), START)
    assert all(map(torch.equal, before, method.teacher.parameters()))
    method.after_step(START)
    for old, new, student in zip(
        before, method.teacher.parameters(), method.encoder.parameters(), strict=True
    ):
        torch.testing.assert_close(new, (old + student) / 2)


@pytest.mark.parametrize("name", QUEUED)
def test_keys_enter_the_queue_after_the_step_and_only_in_training(name: str) -> None:
    method = method_of(small(name))
    queues = [module for module in method.modules() if isinstance(module, KeyBank)]
    assert len(queues) == (1 if name == "moco" else 2)
    method(batch(0), Progress(0, 10, closes_step=False))
    method(batch(1), START)
    assert all(queue.pointer == 0 for queue in queues)
    method.after_step(START)
    assert all(queue.pointer == 2 * IMAGES for queue in queues)
    method.eval()
    method(batch(2), START)
    method.after_step(START)
    assert all(queue.pointer == 2 * IMAGES for queue in queues)


@pytest.mark.parametrize("name", NAMES)
def test_only_the_student_gets_gradients(name: str) -> None:
    method = method_of(small(name))
    method(batch(), START).loss.backward()
    for key, parameter in method.named_parameters():
        assert (parameter.grad is None) == key.startswith("teacher."), key


def train(method: Any, *, steps: int) -> list[float]:
    trained = [p for p in method.parameters() if p.requires_grad]
    optimizer = LARS(trained, lr=1.0, trust=0.02)
    losses = []
    for step in range(steps):
        progress = Progress(step, steps)
        output = method(batch(), progress)
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        method.after_step(progress)
        losses.append(output.loss.item())
    return losses


def test_training_on_one_batch_lowers_the_loss_of_byol() -> None:
    losses = train(method_of(small("byol")), steps=12)
    assert losses[-1] < losses[0] - 0.2


@pytest.mark.parametrize("name", QUEUED)
def test_training_on_one_batch_lowers_the_loss_where_the_queue_stands_still(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On one batch the queue fills with the positives themselves, which no query can tell apart.
    monkeypatch.setattr("clove_ssl.modules.key_bank.KeyBank.advance", lambda bank: None)
    losses = train(method_of(small(name)), steps=12)
    assert losses[-1] < losses[0] - 0.2


@pytest.mark.parametrize("name", NAMES)
def test_a_restored_method_continues_exactly(name: str) -> None:
    method, twin = method_of(small(name)), method_of(small(name))
    train(method, steps=2)
    twin.load_state_dict(method.state_dict())
    assert torch.equal(method(batch(7), START).loss, twin(batch(7), START).loss)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_reads_nothing_back_from_the_device(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Meta tensors have no values: reading one on the host would raise. Autocast knows no such
    # device, and switching it off has no part in this.
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    method = method_of(small(name)).to("meta")
    output = method(batch().to("meta"), START)
    output.loss.backward()
    method.after_step(START)
    assert output.loss.device.type == "meta"


@pytest.mark.parametrize("name", NAMES)
def test_health_figures_and_headlines_are_there(name: str) -> None:
    method = method_of(small(name))
    output = method(batch(), START)
    assert set(method.headline) <= set(output.metrics)
    assert output.artifacts["embeddings"].shape == (IMAGES, 8)
    figures = method.health(output)
    assert set(figures) == {"feature_std", "effective_rank", "teacher_distance"}
    for value in [*figures.values(), *output.metrics.values()]:
        assert value.ndim == 0
        assert torch.isfinite(value)
        assert not value.requires_grad


@pytest.mark.parametrize("name", NAMES)
def test_the_exported_branch_is_the_configured_one(name: str) -> None:
    student = method_of(small(name))
    assert student.export_backbone() is student.encoder.backbone is student.backbone
    teacher = method_of(small(name, export="teacher"))
    assert teacher.export_backbone() is teacher.teacher.module.backbone
    names = list(student.state_dict())
    assert sum(each.endswith("backbone.conv.weight") for each in names) == 2


@pytest.mark.parametrize("name", NAMES)
def test_other_than_two_large_views_are_refused(name: str) -> None:
    for views in (ViewsConfig(), ViewsConfig(global_count=3, local_count=0)):
        with pytest.raises(UserError, match="local-count 0"):
            small(name, views=views)


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"queue_size": 0}, {"shuffle_groups": -1}])
def test_impossible_queues_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="must be above 0"):
        small("moco", **wrong)


@pytest.mark.parametrize("wrong", [{"dense_weight": 1.5}, {"dense_from_step": -1}])
def test_impossible_weights_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="share from 0 to 1"):
        small("densecl", **wrong)


def test_recipes_carry_the_published_learning_rates() -> None:
    peaks = {}
    for name, recipe in recipes.RECIPES.items():
        config = recipe(Path("unused"))
        assert name.startswith(config.method.name)
        assert config.method.summary()["views"] == ("2x160" if "small" in name else "2x224")
        peaks[name] = config.optimizer.peak_lr(config.batch_size)
    assert peaks["byol-r50-200ep"] == pytest.approx(4.8)
    assert peaks["moco-r50-200ep"] == peaks["densecl-r50-200ep"] == pytest.approx(0.03)


def test_moco_views_are_drawn_alike_and_byol_views_are_not() -> None:
    views = {
        name: recipes.RECIPES[f"{name}-r50-200ep"](Path("unused")).method.view_specs()
        for name in NAMES
    }
    assert views["moco"][0] == views["moco"][1]
    assert views["moco"] == views["densecl"]
    first, second = views["byol"]
    assert (first.blur_probability, second.blur_probability) == (1.0, 0.1)
    assert replace(second, blur_probability=1.0, solarize_probability=0.0) == first
