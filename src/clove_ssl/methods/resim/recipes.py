"""Recipes for ReSim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.methods.config import HeadConfig
from clove_ssl.methods.moco.recipes import moco_r50_200ep
from clove_ssl.methods.resim.config import ReSimConfig
from clove_ssl.methods.small_recipes import small_queued


def resim_r50_200ep(out: Path) -> PretrainConfig:
    """ReSim as published: MoCo v2's recipe with losses between windows, 200 epochs of ImageNet.

    Command: ``torchrun --nproc-per-node 8 -m clove_ssl pretrain resim-r50-200ep --data
    "imagenet/{000000..001281}.tar" --out runs/resim``.
    Cost: 256 million images, two views each; one GPU with all 256 images needs several GB for
    the windows. Expected: not run here.
    """
    return replace(moco_r50_200ep(out), method=ReSimConfig())


def resim_r18_small(out: Path) -> PretrainConfig:
    """ReSim with ResNet-18 on one GPU and some ten thousand photos.

    Command: ``clove pretrain resim-r18-small --data photos/ --out runs/resim``.
    Cost: 1.5 times that of ``moco-r18-small``. Expected: as there; a dense probe of 12.9 (11.6 to
    14.0) after 1,544 steps.
    """
    return small_queued(out, ReSimConfig(head=HeadConfig(hidden=512)))


RECIPES: dict[str, Callable[[Path], PretrainConfig]] = {
    "resim-r50-200ep": resim_r50_200ep,
    "resim-r18-small": resim_r18_small,
}
