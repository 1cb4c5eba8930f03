"""Whether fine-tuning captures a part of its steps, and what it says about it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from builders.runs.tiny_finetuning import tiny_finetuning
from builders.tasks.tiny_detectors import tiny_batch, tiny_detector

from clove_ssl.errors import UserError
from clove_ssl.finetuning.learner import choose_capture
from clove_ssl.tasks.base import TaskModel
from clove_ssl.tasks.detection.model import DetectionNetwork
from clove_ssl.tasks.labels.samples import DetectionDataset
from clove_ssl.training.processes import Process

CONFIG = tiny_finetuning("coco-fpn", Path("RUN"))
OFTEN = "first stage and choice of regions, for sizes of batches that come often"


def process(device: str, count: int = 1) -> Process:
    return Process(0, count, 0, count, torch.device(device))


def network() -> DetectionNetwork:
    test = DetectionDataset(samples=(), class_names=("thing",), category_ids=(1,))
    return DetectionNetwork(tiny_detector("c4"), test)


@pytest.mark.parametrize(
    ("asked", "place", "decided"),
    [
        ("auto", process("cuda"), (True, OFTEN)),
        ("always", process("cuda"), (True, OFTEN)),
        ("never", process("cuda"), (False, "as asked")),
        ("auto", process("cpu"), (False, "on a CPU")),
        ("auto", process("cuda", 2), (False, "2 processes share a step")),
    ],
)
def test_detectors_are_captured_where_they_can_be(
    asked: str, place: Process, decided: tuple[bool, str]
) -> None:
    assert choose_capture(replace(CONFIG, capture=asked), place, network()) == decided


def test_other_tasks_say_why_they_are_not() -> None:
    captures, reason = choose_capture(CONFIG, process("cuda"), TaskModel())
    assert not captures
    assert "this task" in reason


def test_a_capture_that_cannot_be_is_refused() -> None:
    with pytest.raises(UserError, match="--capture always cannot be done here: on a CPU"):
        choose_capture(replace(CONFIG, capture="always"), process("cpu"), network())


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
