"""DensePose detectors, batches and runs small enough for a test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from builders.runs.tiny_finetuning import SIDE, tiny_detector, tiny_finetuning

from clove_ssl.backbones.build import build_backbone
from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.tasks.densepose.config import (
    COCODensePoseConfig,
    DensePoseHeadConfig,
    densepose_detector,
)
from clove_ssl.tasks.densepose.detector import DensePoseDetector, build_densepose_detector
from clove_ssl.tasks.densepose.loading import DensePoseImages
from clove_ssl.tasks.densepose.reader import DensePoseDataset
from clove_ssl.tasks.densepose.scenes import read_densepose_scenes, write_densepose_scenes
from clove_ssl.tasks.loading.batches import training_order
from clove_ssl.tasks.loading.images import InputSizes

TINY_HEAD = DensePoseHeadConfig(decoder_width=16, convs=1, width=16, pooled_side=7)


def tiny_densepose_detector() -> DensePoseDetector:
    torch.manual_seed(0)
    backbone = build_backbone(BackboneConfig(name="resnet18", zero_init_last=False))
    config = tiny_detector(densepose_detector())
    return build_densepose_detector(config, TINY_HEAD, backbone)


def tiny_densepose_run(out: Path, **changes: Any) -> FinetuneConfig:
    """Two iterations on built-in figures."""
    config = tiny_finetuning("coco-densepose", out, **changes)
    assert isinstance(config.task, COCODensePoseConfig)
    return replace(config, task=replace(config.task, surface_head=TINY_HEAD))


def scenes(folder: Path, *, count: int = 6, size: int = SIDE) -> DensePoseDataset:
    write_densepose_scenes(folder, count=count, size=size)
    return read_densepose_scenes(folder)


def training_images(dataset: DensePoseDataset, *, seed: int = 0) -> DensePoseImages:
    order = training_order(dataset, seed=seed, group=2)
    return DensePoseImages(dataset, sizes=InputSizes((SIDE,)), order=order)
