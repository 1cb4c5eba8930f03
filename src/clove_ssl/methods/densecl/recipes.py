"""Recipes for DenseCL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.methods.config import HeadConfig
from clove_ssl.methods.densecl.config import DenseCLConfig
from clove_ssl.methods.moco.recipes import moco_r50_200ep
from clove_ssl.methods.small_recipes import small_queued


def densecl_r50_200ep(out: Path) -> PretrainConfig:
    """DenseCL as published: MoCo v2's recipe with a dense loss, 200 epochs of ImageNet.

    Command and cost: as ``moco-r50-200ep``, with 49 times as many queries in the dense loss: one
    GPU with all 256 images needs several GB more for it. Expected: not run here.
    """
    return replace(moco_r50_200ep(out), method=DenseCLConfig())


def densecl_r18_small(out: Path) -> PretrainConfig:
    """DenseCL with ResNet-18 on one GPU and some ten thousand photos.

    Command: ``clove pretrain densecl-r18-small --data photos/ --out runs/densecl``.
    Cost: somewhat more than ``moco-r18-small``. Expected: as there; 8.2 (7.1 to 9.3) in the same
    trial.
    """
    head = HeadConfig(hidden=512)
    return small_queued(out, DenseCLConfig(head=head, dense_head=head))


RECIPES: dict[str, Callable[[Path], PretrainConfig]] = {
    "densecl-r50-200ep": densecl_r50_200ep,
    "densecl-r18-small": densecl_r18_small,
}
