"""The smallest pre-training run that still has every part of a real one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from clove_ssl.config.pretraining import (
    BackboneConfig,
    CheckpointConfig,
    DataConfig,
    LoggingConfig,
    OptimizerConfig,
    PretrainConfig,
)
from clove_ssl.config.views import ViewsConfig
from clove_ssl.methods.clove.config import AttentionConfig, CLoVEConfig, LossConfig
from clove_ssl.methods.config import ProjectorConfig

NO_CHECKPOINTS = CheckpointConfig(every_epochs=1e6)
"""But for the one at the end."""
RESNET18 = BackboneConfig(name="resnet18", stage="c4")
"""For tests in which names or numbers of a usual network matter."""


def tiny_config(out: Path, **changes: Any) -> PretrainConfig:
    """Six steps of eight scenes, with large and small views, on one CPU thread in seconds."""
    config = PretrainConfig(
        out=out,
        data=DataConfig(scenes_count=20, scenes_size=64, workers=0),
        method=tiny_method(),
        backbone=BackboneConfig(name="timm:test_resnet", stage="c4"),  # of at most 48 channels
        optimizer=OptimizerConfig(warmup_epochs=0.5),
        checkpoints=CheckpointConfig(every_epochs=0.8, min_steps=1),  # of every second step
        logging=LoggingConfig(every=1),
        steps=6,
        batch_size=8,
        device="cpu",
    )
    return replace(config, **changes)


def tiny_method(**loss: Any) -> CLoVEConfig:
    """CLoVE with 4x4 and 2x2 cells and few channels."""
    return CLoVEConfig(
        views=ViewsConfig(global_size=64, local_count=2, local_size=32),
        projector=ProjectorConfig(hidden=32, out=16),
        attention=AttentionConfig(heads=2),
        loss=LossConfig(**{"top_k": 4, **loss}),
    )
