"""Finished fine-tuning runs that hold a model and nothing else, made without training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from builders.runs.tiny_finetuning import tiny_task
from torch import nn

from clove_ssl.backbones.build import build_backbone
from clove_ssl.config.detection import DetectorConfig
from clove_ssl.config.finetuning import FinetuneConfig, protocol
from clove_ssl.finetuning.finetuned import write_finetuned
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.tasks.base import TaskModel, Vocabulary

CLASSES = ("cat", "dog", "person")
POINTS = ("nose", "left_eye", "right_eye")


def write_run(
    folder: Path,
    task: str,
    *,
    architecture: str = "resnet18",
    detector: DetectorConfig | None = None,
    classes: tuple[str, ...] = CLASSES,
) -> tuple[RunDirectory, TaskModel]:
    """A run of a task with a model whose numbers no initialisation could equal."""
    config = protocol(task, folder, "random")
    if detector is not None:
        config = replace(config, task=replace(config.task, detector=detector))  # type: ignore[call-arg]
    return _write(folder, config, architecture=architecture, classes=classes)


def write_tiny_run(
    folder: Path,
    task: str,
    *,
    classes: tuple[str, ...] = CLASSES,
    architecture: str = "resnet18",
    test_side: int | None = None,
) -> tuple[RunDirectory, TaskModel]:
    """The same with narrow heads and small images, of detectors and of segmenters."""
    config = protocol(task, folder, "random")
    tiny = tiny_task(config.task)
    if test_side is not None:
        tiny = replace(tiny, test_side=test_side)  # type: ignore[call-arg]
    config = replace(config, task=tiny)
    return _write(folder, config, architecture=architecture, classes=classes)


def _write(
    folder: Path, config: FinetuneConfig, *, architecture: str, classes: tuple[str, ...]
) -> tuple[RunDirectory, TaskModel]:
    built = config.task.build()
    detector = getattr(config.task, "detector", None)
    points = POINTS if detector is not None and detector.keypoints else ()
    numbers = tuple(range(1, len(classes) + 1)) if detector is not None else ()
    vocabulary = Vocabulary(classes, numbers, points)
    torch.manual_seed(3)
    backbone = build_backbone(built.backbone_config(architecture))
    model = built.build_model(backbone, built.without_data(vocabulary), seed=3)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.uniform_(-0.1, 0.1)
                module.running_var.uniform_(0.8, 1.2)
        for name, tensor in model.named_parameters():
            if "predictor" in name or "proposer" in name:
                tensor.add_(0.02 * torch.randn(tensor.shape))
            if name.endswith("mask_head.predictor.bias"):
                tensor.add_(0.5)  # else masks of such models are mostly empty
    run = RunDirectory(folder)
    run.model.parent.mkdir(parents=True)
    write_finetuned(run, config, model.eval(), vocabulary)
    return run, model
