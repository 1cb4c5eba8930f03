"""Recipes for CP2."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from clove_ssl.config.pretraining import BackboneConfig, PretrainConfig
from clove_ssl.methods.config import HeadConfig
from clove_ssl.methods.cp2.config import CP2Config, PyramidConfig
from clove_ssl.methods.moco.recipes import moco_r50_200ep
from clove_ssl.methods.small_recipes import small_queued


def cp2_r50_200ep(out: Path) -> PretrainConfig:
    """CP2 as published: ResNet-50 with a dilated last stage, 200 epochs of ImageNet.

    Command: ``torchrun --nproc-per-node 8 -m clove_ssl pretrain cp2-r50-200ep --data
    "imagenet/{000000..001281}.tar" --out runs/cp2``. The authors' quick tuning is the same with
    ``--epochs 20 --backbone.weights moco_v2_800ep.pth``.
    Cost: 256 million images, two views each, with four times as many cells in the last stage and
    a pyramid on top. Expected: not run here.
    """
    config = moco_r50_200ep(out)
    return replace(
        config,
        method=CP2Config(),
        backbone=BackboneConfig(zero_init_last=False, output_stride=16),
        optimizer=replace(config.optimizer, lr=0.015),
    )


def cp2_r18_small(out: Path) -> PretrainConfig:
    """CP2 with ResNet-18 on one GPU and some ten thousand photos.

    Command: ``clove pretrain cp2-r18-small --data photos/ --out runs/cp2``.
    Cost: a third more than ``moco-r18-small``. A ResNet-18 cannot be dilated, so maps have 5x5
    cells, and the pyramid's branches lie closer. Expected: a dense probe of 9.7 (9.0 to 10.3) after
    1,803 steps, less than that of ``moco-r18-small``, see docs/results/methods.md.
    """
    pyramid = PyramidConfig(channels=256, dilations=(1, 2, 3))
    method = CP2Config(pyramid=pyramid, head=HeadConfig(hidden=256))
    return small_queued(out, method)


RECIPES: dict[str, Callable[[Path], PretrainConfig]] = {
    "cp2-r50-200ep": cp2_r50_200ep,
    "cp2-r18-small": cp2_r18_small,
}
