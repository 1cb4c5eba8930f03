"""Recipes for supervised training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from clove_ssl.config.pretraining import (
    BackboneConfig,
    CheckpointConfig,
    OptimizerConfig,
    PretrainConfig,
)
from clove_ssl.methods.small_recipes import small_run, small_views
from clove_ssl.methods.supervised.config import SupervisedConfig, plain_crop


def supervised_r50_100ep(out: Path) -> PretrainConfig:
    """ResNet-50 on the class labels of ImageNet, 100 epochs, with torchvision's hyperparameters.

    Command: ``torchrun --nproc-per-node 8 -m clove_ssl pretrain supervised-r50-100ep --data
    "imagenet/{000000..001281}.tar" --out runs/supervised``; a folder with one folder per class
    does as well.
    Cost: 128 million images, one view each. Torchvision takes 90 epochs and divides the learning
    rate by ten at 30 and 60; here it follows a cosine.
    Expected: not run here; torchvision's weights reach 76.1 % top-1 accuracy.
    """
    return PretrainConfig(
        out=out,
        method=SupervisedConfig(),
        backbone=BackboneConfig(zero_init_last=False),
        optimizer=OptimizerConfig(
            name="sgd", lr=0.1, weight_decay=1e-4, decay="all", warmup_epochs=0.0, final_lr=0.0
        ),
        epochs=100,
        batch_size=256,
        sync_norm=False,
        checkpoints=CheckpointConfig(milestone_epochs=50),
    )


def supervised_r18_small(out: Path) -> PretrainConfig:
    """ResNet-18 on the class labels of a few thousand photos, on one GPU.

    Command: ``clove pretrain supervised-r18-small --data photos/ --out runs/supervised``, where
    ``photos/`` has one folder per class. Cost: half of a method on two views. Photos without a
    class are left out, so an epoch may be short: give ``--steps`` for the budget of another
    method. A network soon memorises few photos; label smoothing and more weight decay than usual
    delay that. Expected: in a trial of 100 steps, k-NN accuracy on the training photos rose above
    that of random weights (35 against 29 %); not tuned.
    """
    method = SupervisedConfig(views=small_views(plain_crop()), label_smoothing=0.1)
    return small_run(
        out, method, OptimizerConfig(name="sgd", lr=0.1, weight_decay=5e-4, warmup_epochs=2.0)
    )


RECIPES: dict[str, Callable[[Path], PretrainConfig]] = {
    "supervised-r50-100ep": supervised_r50_100ep,
    "supervised-r18-small": supervised_r18_small,
}
