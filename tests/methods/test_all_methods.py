"""What holds for every method: who moves when, who gets gradients, what is exported."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from builders.batches.two_views import IMAGES, two_views
from builders.runs.method_runs import QUEUED, TAUGHT, TRAINED, small_method, tiny_built

from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.config.views import ViewsConfig
from clove_ssl.errors import UserError
from clove_ssl.methods.base import Progress
from clove_ssl.methods.config import TeacherConfig
from clove_ssl.methods.queue import KeyBank
from clove_ssl.optimizers import LARS
from clove_ssl.runs.hints import metric_table
from clove_ssl.views.batch import ViewBatch

START = Progress(step=0, total_steps=10)
OPEN = Progress(step=0, total_steps=10, closes_step=False)
TWO_LARGE_VIEWS = tuple(name for name in TAUGHT if name not in ("clove", "clove-plus"))


def train(method: Any, batch: ViewBatch, *, steps: int) -> list[float]:
    """Steps on one batch, each with half a step of accumulation before it."""
    trained = [p for p in method.parameters() if p.requires_grad]
    optimizer = LARS(trained, lr=0.3, trust=0.02)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        for closes in (False, True):
            output = method(batch, Progress(step, steps, closes_step=closes))
            (output.loss / 2).backward()
        optimizer.step()
        method.after_step(Progress(step, steps))
        losses.append(output.loss.item())
    return losses


@pytest.mark.parametrize("name", TAUGHT)
@pytest.mark.parametrize("update", ["before-forward", "after-step"])
def test_the_teacher_moves_once_per_optimizer_step(name: str, update: Any) -> None:
    teacher = TeacherConfig(momentum=0.75, final_momentum=0.75, update=update)
    config = small_method(name, teacher=teacher)
    method, batch = tiny_built(config), two_views(config)
    before = [p.clone() for p in method.teacher.parameters()]
    method(batch, OPEN)
    method(batch, OPEN)
    assert all(map(torch.equal, before, method.teacher.parameters()))
    method(batch, START)
    has_moved = not all(map(torch.equal, before, method.teacher.parameters()))
    assert has_moved == (update == "before-forward")
    method.after_step(START)
    students = list(method.encoder.parameters())
    for old, new, student in zip(before, method.teacher.parameters(), students, strict=True):
        torch.testing.assert_close(new, 0.75 * old + 0.25 * student)


@pytest.mark.parametrize("name", QUEUED)
def test_keys_enter_the_queues_after_the_step_and_only_in_training(name: str) -> None:
    config = small_method(name)
    method = tiny_built(config)
    queues = [module for module in method.modules() if isinstance(module, KeyBank)]
    assert len(queues) == config.queues
    method(two_views(config, 0), OPEN)
    method(two_views(config, 1), START)
    assert all(queue.pointer == 0 for queue in queues)
    method.after_step(START)
    assert all(queue.pointer == 2 * IMAGES for queue in queues)
    assert len({tuple(queue.entries[0].tolist()) for queue in queues}) == len(queues)
    method.eval()
    method(two_views(config, 2), START)
    method.after_step(START)
    assert all(queue.pointer == 2 * IMAGES for queue in queues)


@pytest.mark.parametrize("name", TRAINED)
def test_gradients_reach_everything_but_the_teacher(name: str) -> None:
    config = small_method(name)
    method = tiny_built(config)
    method(two_views(config), START).loss.backward()
    for key, parameter in method.named_parameters():
        assert (parameter.grad is None) == key.startswith("teacher."), key


@pytest.mark.parametrize("name", TRAINED)
def test_training_on_one_batch_lowers_the_loss(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # On one batch a queue fills with the positives themselves, which no query can tell apart.
    monkeypatch.setattr("clove_ssl.methods.queue.KeyBank.advance", lambda bank: None)
    config = small_method(name)
    losses = train(tiny_built(config), two_views(config), steps=10)
    assert losses[-1] < losses[0] - 0.2


@pytest.mark.parametrize("name", TRAINED)
def test_a_restored_method_continues_exactly(name: str) -> None:
    config = small_method(name)
    method, twin = tiny_built(config), tiny_built(config)
    train(method, two_views(config), steps=2)
    twin.load_state_dict(method.state_dict())
    batch = two_views(config, 7)
    assert torch.equal(method(batch, START).loss, twin(batch, START).loss)


@pytest.mark.parametrize("name", sorted(set(TRAINED) - {"slotcon"}))  # which picks common slots
def test_a_step_reads_nothing_back_from_the_device(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Meta tensors have no values: reading one on the host would raise. Autocast knows no such
    # device, and switching it off has no part in this.
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    config = small_method(name)
    method = tiny_built(config).to("meta")
    output = method(two_views(config).to("meta"), START)
    output.loss.backward()
    method.after_step(START)
    assert output.loss.device.type == "meta"


@pytest.mark.parametrize("name", TRAINED)
def test_health_metrics_and_headlines_are_there(name: str) -> None:
    config = small_method(name)
    method = tiny_built(config)
    output = method(two_views(config), START)
    figures = method.health(output)
    assert set(method.headline) <= set(output.metrics)
    assert "feature_std" in figures
    assert ("teacher_distance" in figures) == config.has_teacher
    for value in [*figures.values(), *output.metrics.values()]:
        assert value.ndim == 0
        assert torch.isfinite(value)
        assert not value.requires_grad


@pytest.mark.parametrize("name", TRAINED)
def test_every_logged_metric_is_explained(name: str) -> None:
    config = small_method(name)
    method = tiny_built(config)
    output = method(two_views(config), START)
    table = metric_table(PretrainConfig(out=Path("run"), method=config))
    for logged in {*output.metrics, *method.health(output)}:
        assert table.of(logged).group != "other", logged


@pytest.mark.parametrize("name", TAUGHT)
def test_the_exported_branch_is_the_configured_one(name: str) -> None:
    student = tiny_built(small_method(name, export="student"))
    assert student.export_backbone() is student.encoder.backbone is student.backbone
    assert student.export_backbone("teacher") is student.teacher.module.backbone
    assert student.export_encoder() is student.encoder
    assert student.encoders() == (student.encoder, student.teacher.module)
    config = small_method(name, export="teacher")
    teacher = tiny_built(config)
    assert config.exported_branch == "teacher"
    assert teacher.export_backbone() is teacher.teacher.module.backbone
    shared = set(student.encoder.state_dict())
    copies = [key for key in student.state_dict() if key.removeprefix("encoder.") in shared]
    assert len(copies) == len(shared)  # a second registration would double the state dict


@pytest.mark.parametrize("name", TWO_LARGE_VIEWS)
def test_other_than_two_large_views_are_refused(name: str) -> None:
    for views in (ViewsConfig(), ViewsConfig(global_count=3, local_count=0)):
        with pytest.raises(UserError, match="local-count 0"):
            small_method(name, views=views)
