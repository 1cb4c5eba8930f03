"""Recipes for BYOL, MoCo v2 and DenseCL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from clove_ssl.config.methods.byol import BYOLConfig
from clove_ssl.config.methods.densecl import DenseCLConfig
from clove_ssl.config.methods.moco import MoCoConfig
from clove_ssl.config.methods.pooled_views import HeadConfig
from clove_ssl.config.methods.two_views import wide_crops
from clove_ssl.config.pretraining import (
    BackboneConfig,
    CheckpointConfig,
    OptimizerConfig,
    PretrainConfig,
)
from clove_ssl.config.recipes.small import small_lars, small_queued, small_run, small_views


def moco_r50_200ep(out: Path) -> PretrainConfig:
    """MoCo v2 as published: ResNet-50, 200 epochs of ImageNet.

    Command: ``torchrun --nproc-per-node 8 -m clove_ssl pretrain moco-r50-200ep --data
    "imagenet/{000000..001281}.tar" --out runs/moco``.
    Cost: 256 million images, two views each. Expected: not run here.
    """
    return PretrainConfig(
        out=out,
        method=MoCoConfig(),
        backbone=BackboneConfig(zero_init_last=False),
        optimizer=OptimizerConfig(
            name="sgd", lr=0.03, weight_decay=1e-4, decay="all", warmup_epochs=0.0, final_lr=0.0
        ),
        batch_size=256,
        sync_norm=False,
        checkpoints=CheckpointConfig(milestone_epochs=50),
    )


def densecl_r50_200ep(out: Path) -> PretrainConfig:
    """DenseCL as published: MoCo v2's recipe with a dense loss, 200 epochs of ImageNet.

    Command and cost: as ``moco-r50-200ep``, with 49 times as many queries in the dense loss: one
    GPU with all 256 images needs several GB more for it. Expected: not run here.
    """
    return replace(moco_r50_200ep(out), method=DenseCLConfig())


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


def moco_r18_small(out: Path) -> PretrainConfig:
    """MoCo v2 with ResNet-18 on one GPU and some ten thousand photos.

    Command: ``clove pretrain moco-r18-small --data photos/ --out runs/moco``.
    Cost: about half of ``clove-r18-small`` without its small views, as each network sees one view.
    The queue is shorter and the teacher faster than published, as an epoch is shorter.
    Expected: the loss rises while real keys fill the queue, then falls slowly. After a trial of
    250 steps of 128 photos the dense probe had 8.3 (7.3 to 9.2).
    """
    return small_queued(out, MoCoConfig(head=HeadConfig(hidden=512)))


def densecl_r18_small(out: Path) -> PretrainConfig:
    """DenseCL with ResNet-18 on one GPU and some ten thousand photos.

    Command: ``clove pretrain densecl-r18-small --data photos/ --out runs/densecl``.
    Cost: somewhat more than ``moco-r18-small``. Expected: as there; 8.2 (7.1 to 9.3) in the same
    trial.
    """
    head = HeadConfig(hidden=512)
    return small_queued(out, DenseCLConfig(head=head, dense_head=head))


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
    "moco-r50-200ep": moco_r50_200ep,
    "densecl-r50-200ep": densecl_r50_200ep,
    "byol-r18-small": byol_r18_small,
    "moco-r18-small": moco_r18_small,
    "densecl-r18-small": densecl_r18_small,
}
