"""Whether fine-tuning captures a part of its steps, and what it says about it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from builders.runs.tiny_finetuning import tiny_finetuning
from builders.tasks.tiny_detectors import tiny_batch, tiny_detector
from torch import Tensor

from clove_ssl.config.choice import Choice
from clove_ssl.errors import UserError
from clove_ssl.finetuning.choices import choose_capture
from clove_ssl.finetuning.learner import TaskLearner
from clove_ssl.finetuning.plan import plan_finetuning
from clove_ssl.methods.base import Progress
from clove_ssl.tasks.base import TaskModel
from clove_ssl.tasks.detection.model import DetectionNetwork
from clove_ssl.tasks.labels.samples import DetectionDataset
from clove_ssl.training.processes import Process

CONFIG = tiny_finetuning("coco-fpn", Path("RUN"))
OFTEN = "first stage, choice of regions and box head, for frequent image sizes"


def process(device: str, count: int = 1) -> Process:
    return Process(0, count, 0, count, torch.device(device))


def network() -> DetectionNetwork:
    test = DetectionDataset(samples=(), class_names=("thing",), category_ids=(1,))
    return DetectionNetwork(tiny_detector("c4"), test)


def chosen(place: Process, model: TaskModel, **changes: Any) -> Choice[bool]:
    config = replace(CONFIG, **changes)
    plan = plan_finetuning(config, images=100, processes=place.world_size)
    return choose_capture(config, plan, place, model)


@pytest.mark.parametrize(
    ("asked", "place", "decided"),
    [
        ("auto", process("cuda"), Choice(True, OFTEN)),
        ("always", process("cuda"), Choice(True, OFTEN)),
        ("never", process("cuda"), Choice(False, "as asked")),
        ("auto", process("cpu"), Choice(False, "on a CPU")),
        ("auto", process("cuda", 2), Choice(False, "2 processes share a step")),
    ],
)
def test_detectors_are_captured_where_they_can_be(
    asked: str, place: Process, decided: Choice[bool]
) -> None:
    assert chosen(place, network(), capture=asked) == decided


@pytest.mark.parametrize(
    ("asked", "images", "captures"), [("auto", 16, False), ("always", 16, True), ("auto", 4, True)]
)
def test_large_batches_are_captured_only_if_asked_for(
    asked: str, images: int, captures: bool
) -> None:
    task = replace(CONFIG.task, train_sides=(640, 800), longest=1333)
    changes = {"capture": asked, "task": task, "batch_size": 16, "micro_batch": images}
    found = chosen(process("cuda"), network(), **changes)
    assert found.value is captures
    if not captures:
        assert "17 million pixels" in found.reason


def test_terms_of_a_micro_batch_outlast_the_next_replay() -> None:
    kept = torch.tensor(1.0)

    class Replaying(TaskModel):
        def losses(self, batch: Any, *, step: int) -> dict[str, Tensor]:
            kept.fill_(batch)
            return {"loss_first": kept.detach(), "loss_second": kept * 2}

    learner = TaskLearner(Replaying())
    first, second = (learner(number, Progress(0, 1)) for number in (1.0, 5.0))
    assert {name: float(value) for name, value in first.metrics.items()} == {
        "loss_first": 1.0,
        "loss_second": 2.0,
    }
    assert (float(first.loss), float(second.loss)) == (3.0, 15.0)


def test_other_tasks_say_why_they_are_not() -> None:
    found = chosen(process("cuda"), TaskModel())
    assert not found.value
    assert "this task" in found.reason


def test_a_capture_that_cannot_be_is_refused() -> None:
    with pytest.raises(UserError, match="--capture always cannot be done here: on a CPU"):
        chosen(process("cpu"), network(), capture="always")


@pytest.mark.parametrize("kind", ["c4", "c4-masks", "fpn", "keypoints"])
def test_what_goes_into_a_graph_and_comes_out_of_it_is_found_again(kind: str) -> None:
    model = tiny_detector(kind)
    inputs = model.first_inputs(tiny_batch(), step=0, roomy=True)
    found = model.inputs_of(inputs.flat())
    assert all(mine is other for mine, other in zip(found.objects, inputs.objects, strict=True))
    assert all(mine is other for mine, other in zip(found[:3], inputs[:3], strict=True))
    first = model.first_stage(inputs)
    again = model.stage_of(first.flat())
    assert len(again.levels) == (1 if kind == "c4" or kind == "c4-masks" else 5)
    for mine, other in zip(again.flat(), first.flat(), strict=True):
        assert mine is other
    assert again.drawn.numbers is first.drawn.numbers
    assert again.drawn.visible is first.drawn.visible
    assert again.drawn.levels is first.drawn.levels
