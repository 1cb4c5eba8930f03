"""The smallest fine-tuning runs that still have every part of a real one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from clove_ssl.config.bases import TaskConfig
from clove_ssl.config.detection import DetectorConfig, KeypointHeadConfig
from clove_ssl.config.finetuning import (
    EvaluationConfig,
    FinetuneConfig,
    LabelledDataConfig,
    protocol,
)
from clove_ssl.config.pretraining import LoggingConfig
from clove_ssl.tasks.detection.config import DetectionConfig
from clove_ssl.tasks.semantic.config import VOCSemanticConfig

SIDE = 64


def tiny_finetuning(task: str, out: Path, **changes: Any) -> FinetuneConfig:
    """Two iterations of two small scenes with narrow heads, in seconds on one CPU thread."""
    config = protocol(task, out, "random")
    return replace(
        config,
        task=tiny_task(config.task),
        architecture="resnet18",
        data=LabelledDataConfig(scenes_train=6, scenes_test=3, scenes_size=SIDE, workers=0),
        evaluation=EvaluationConfig(precise_norm_batches=1, pictures=2),
        logging=LoggingConfig(every=1),
        **{"iterations": 2, "batch_size": 2, "device": "cpu", **changes},
    )


def tiny_task(task: TaskConfig) -> TaskConfig:
    """The same task on small images."""
    if isinstance(task, VOCSemanticConfig):
        return replace(task, crop=SIDE, head_width=16, head_dilation=1)
    assert isinstance(task, DetectionConfig)
    return replace(task, detector=tiny_detector(task.detector), train_sides=(SIDE,), test_side=SIDE)


def tiny_detector(config: DetectorConfig) -> DetectorConfig:
    """The same detector with few regions and narrow layers."""
    return replace(
        config,
        pyramid_width=16,
        proposals=replace(
            config.proposals,
            anchor_sizes=(8.0, 16.0, 32.0, 64.0, 128.0),
            train_before_nms=60,
            train_after_nms=30,
            test_before_nms=30,
            test_after_nms=20,
            anchors_per_image=32,
        ),
        box=replace(
            config.box,
            convs=min(1, config.box.convs),
            conv_width=16,
            fc_width=32,
            regions_per_image=8,
        ),
        mask=replace(config.mask, convs=min(1, config.mask.convs), width=16),
        keypoint=KeypointHeadConfig(convs=1, width=16),
        read_out=replace(config.read_out, detections=5, score_above=0.0),
    )
