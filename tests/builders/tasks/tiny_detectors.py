"""Detectors and batches small enough to train in a test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from clove_ssl.backbones.build import build_backbone
from clove_ssl.config.detection import (
    BoxHeadConfig,
    DetectorConfig,
    KeypointHeadConfig,
    MaskHeadConfig,
    ProposalConfig,
    c4_detector,
    fpn_detector,
    keypoint_detector,
)
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.tasks.rcnn.detector import Detector, build_detector
from clove_ssl.tasks.rcnn.instances import DetectionBatch, ImageTargets

CLASSES, KEYPOINTS = 3, 4
FULL_SIZE = {
    "c4": c4_detector(masks=False),
    "c4-masks": c4_detector(masks=True),
    "fpn": fpn_detector(),
    "keypoints": keypoint_detector(),
}


def tiny_config(kind: str, **changes: object) -> DetectorConfig:
    """A detector of a protocol with few channels and regions."""
    config = FULL_SIZE[kind]
    return replace(
        config,
        pyramid_width=16,
        proposals=ProposalConfig(train_after_nms=30, test_after_nms=20, anchors_per_image=32),
        box=BoxHeadConfig(
            convs=min(config.box.convs, 1),
            conv_width=16,
            fcs=config.box.fcs,
            fc_width=32,
            regions_per_image=16,
            loss_beta=config.box.loss_beta,
        ),
        mask=MaskHeadConfig(convs=min(config.mask.convs, 1), width=16),
        keypoint=KeypointHeadConfig(convs=1, width=16),
        **changes,
    )


def tiny_detector(kind: str, *, backbone: str = "resnet18", **changes: object) -> Detector:
    torch.manual_seed(0)
    return build_detector(
        tiny_config(kind, **changes),
        build_backbone(BackboneConfig(name=backbone, zero_init_last=False)),
        classes=CLASSES,
        keypoints=KEYPOINTS,
    )


def objects(boxes: Sequence[Sequence[float]]) -> ImageTargets:
    """Rectangular objects with all kinds of annotations."""
    table = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    x1, y1, x2, y2 = table.double().numpy().T
    corners = np.stack([x1, y1, x2, y1, x2, y2, x1, y2], axis=1)
    center = (table[:, :2] + table[:, 2:]) / 2
    points = torch.cat([center, torch.full((len(table), 1), 2.0)], dim=1)
    return ImageTargets(
        boxes=table,
        classes=torch.arange(len(table)) % CLASSES,
        polygons=tuple((polygon,) for polygon in corners),
        keypoints=points[:, None].repeat(1, KEYPOINTS, 1),
    )


def tiny_batch(boxes: Sequence[Sequence[Sequence[float]]] | None = None) -> DetectionBatch:
    """Two images of different sizes with the given objects."""
    if boxes is None:
        boxes = [[[5, 8, 40, 50], [30, 10, 90, 60]], [[10, 10, 60, 70]]]
    source = torch.Generator().manual_seed(0)
    sizes = [(64, 96), (80, 72)]
    images = [torch.randint(256, (3, *size), generator=source, dtype=torch.uint8) for size in sizes]
    return DetectionBatch(
        images=tuple(images),
        targets=tuple(objects(each) for each in boxes),
        original_sizes=((128, 192), (160, 144)),
        keys=torch.tensor([7, 11]),
    )
