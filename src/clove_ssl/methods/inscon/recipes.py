"""Recipes for InsCon, after the abstract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.methods.config import HeadConfig
from clove_ssl.methods.inscon.config import InsConConfig, MosaicConfig
from clove_ssl.methods.moco.recipes import moco_r50_200ep
from clove_ssl.methods.small_recipes import small_queued


def inscon_r50_200ep(out: Path) -> PretrainConfig:
    """InsCon, after the abstract: MoCo v2's recipe, four photos in one image, 200 epochs.

    Command: ``torchrun --nproc-per-node 8 -m clove_ssl pretrain inscon-r50-200ep --data
    "imagenet/{000000..001281}.tar" --out runs/inscon``. The authors' hyperparameters are not
    known; these are MoCo v2's.
    Cost: about a third of ``moco-r50-200ep``: four photos share an image of 256 pixels.
    Expected: not run here.
    """
    return replace(moco_r50_200ep(out), method=InsConConfig())


def inscon_r18_small(out: Path) -> PretrainConfig:
    """InsCon, after the abstract, with ResNet-18 on one GPU and some ten thousand photos.

    Command: ``clove pretrain inscon-r18-small --data photos/ --out runs/inscon``.
    Cost: the networks see four photos in an image of 192 pixels, about a third of the pixels of
    ``moco-r18-small``; an epoch has as many steps. Expected: not run here.
    """
    head = HeadConfig(hidden=512)
    method = InsConConfig(head=head, dense_head=head, mosaic=MosaicConfig(tile=96))
    return small_queued(out, method)


RECIPES: dict[str, Callable[[Path], PretrainConfig]] = {
    "inscon-r50-200ep": inscon_r50_200ep,
    "inscon-r18-small": inscon_r18_small,
}
