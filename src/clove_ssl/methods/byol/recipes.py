"""Recipes for BYOL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from clove_ssl.config.pretraining import CheckpointConfig, OptimizerConfig, PretrainConfig
from clove_ssl.methods.byol.config import BYOLConfig
from clove_ssl.methods.config import HeadConfig, wide_crops
from clove_ssl.methods.small_recipes import small_lars, small_run, small_views


def byol_r50_200ep(out: Path) -> PretrainConfig:
    """BYOL with the hyperparameters of its short runs: ResNet-50, 200 epochs of ImageNet.

    Command: ``torchrun --nproc-per-node 8 -m clove_ssl pretrain byol-r50-200ep --data
    "imagenet/{000000..001281}.tar" --out runs/byol``.
    Cost: 256 million images, two views each, in batches of 4096. Expected: not run here.
    """
    return PretrainConfig(
        out=out,
        method=BYOLConfig(),
        optimizer=OptimizerConfig(
            lr=0.3, weight_decay=1e-6, warmup_epochs=10.0, warmup_start=0.001, final_lr=0.0
        ),
        batch_size=4096,
        checkpoints=CheckpointConfig(milestone_epochs=50),
    )


def byol_r18_small(out: Path) -> PretrainConfig:
    """BYOL with ResNet-18 on one GPU and some ten thousand photos.

    Command: ``clove pretrain byol-r18-small --data photos/ --out runs/byol``.
    Cost: about that of ``clove-r18-small`` without its small views. The learning rate is thirteen
    times the published one for batches of 256. Expected: after a trial of 250 steps of 128 photos
    the dense probe had 8.0 (6.9 to 8.9).
    """
    method = BYOLConfig(
        views=small_views(wide_crops("bicubic")),
        projector=HeadConfig(hidden=2048, out=256),
        predictor_hidden=2048,
    )
    return small_run(out, method, small_lars(weight_decay=1e-6))


RECIPES: dict[str, Callable[[Path], PretrainConfig]] = {
    "byol-r50-200ep": byol_r50_200ep,
    "byol-r18-small": byol_r18_small,
}
