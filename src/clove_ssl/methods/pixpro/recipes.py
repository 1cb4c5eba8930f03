"""Recipes for PixPro."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from clove_ssl.config.pretraining import CheckpointConfig, OptimizerConfig, PretrainConfig
from clove_ssl.methods.config import ProjectorConfig, wide_crops
from clove_ssl.methods.pixpro.config import InstanceConfig, PixProConfig
from clove_ssl.methods.small_recipes import small_run, small_views


def pixpro_r50_400ep(out: Path) -> PretrainConfig:
    """PixPro as published: ResNet-50 with the instance branch, 400 epochs of ImageNet.

    Command: ``torchrun --nproc-per-node 8 -m clove_ssl pretrain pixpro-r50-400ep --data
    "imagenet/{000000..001281}.tar" --out runs/pixpro``.
    Cost: 512 million images, two views each.
    Expected: COCO R50-FPN 41.4 box AP and 37.4 mask AP after fine-tuning (authors).
    """
    return PretrainConfig(
        out=out,
        method=PixProConfig(instance=InstanceConfig(weight=1.0)),
        optimizer=OptimizerConfig(weight_decay=1e-5, final_lr=2.5e-7),
        epochs=400,
        batch_size=1024,
        checkpoints=CheckpointConfig(milestone_epochs=50),
    )


def pixpro_r18_small(out: Path) -> PretrainConfig:
    """PixPro with a ResNet-18 on one GPU and a few thousand to a hundred thousand photos.

    Command: ``clove pretrain pixpro-r18-small --data photos/ --out runs/pixpro``.
    Cost: as ``clove-r18-small`` without its small views: minutes to hours. The learning rate is
    four times the published one for batches of 256. Expected: ``effective_rank`` falls to 60
    within 200 steps of 64 photos; no collapse.
    """
    projector = ProjectorConfig(hidden=2048, out=256, bias=True, last_norm="none")
    method = PixProConfig(views=small_views(wide_crops("bicubic")), projector=projector)
    return small_run(out, method)


RECIPES: dict[str, Callable[[Path], PretrainConfig]] = {
    "pixpro-r50-400ep": pixpro_r50_400ep,
    "pixpro-r18-small": pixpro_r18_small,
}
