"""Recipes for SlotCon."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from clove_ssl.config.pretraining import CheckpointConfig, OptimizerConfig, PretrainConfig
from clove_ssl.methods.config import wide_crops
from clove_ssl.methods.slotcon.config import SlotConConfig, SlotHeadConfig
from clove_ssl.methods.small_recipes import small_run, small_views, steady_teacher


def slotcon_r50_200ep(out: Path) -> PretrainConfig:
    """SlotCon as published: ResNet-50, 200 epochs of ImageNet.

    Command: ``torchrun --nproc-per-node 8 -m clove_ssl pretrain slotcon-r50-200ep --data
    "imagenet/{000000..001281}.tar" --out runs/slotcon``.
    Cost: 256 million images, two views each.
    Expected: COCO R50-FPN 41.8 box AP and 37.8 mask AP after fine-tuning (authors).
    """
    return PretrainConfig(
        out=out,
        method=SlotConConfig(),
        optimizer=OptimizerConfig(weight_decay=1e-5, final_lr=5e-7),
        epochs=200,
        batch_size=512,
        checkpoints=CheckpointConfig(milestone_epochs=50),
    )


def slotcon_r18_small(out: Path) -> PretrainConfig:
    """SlotCon with a ResNet-18 on one GPU and a few thousand to a hundred thousand photos.

    Command: ``clove pretrain slotcon-r18-small --data photos/ --out runs/slotcon``.
    Cost: as ``pixpro-r18-small``. There are 64 prototypes, since ten times as many photos (COCO)
    have 256. The teacher is what is exported, so it does not slow down towards the end.
    Expected: ``prototypes_in_use`` falls to a fifth within 70 steps, while ``loss_group`` stays
    near 8.3, the value of even assignments: cells leave most prototypes before these have
    moved. With ``--method.loss.teacher-temperature 0.04`` a quarter was in use after 100 steps and
    that loss at 7.9, but probes were no better, so the published 0.07 stays. Not tuned further.
    """
    method = SlotConConfig(
        views=small_views(wide_crops("bicubic")),
        prototypes=64,
        head=SlotHeadConfig(hidden=2048, out=256),
        teacher=steady_teacher(),
    )
    return small_run(out, method)


RECIPES: dict[str, Callable[[Path], PretrainConfig]] = {
    "slotcon-r50-200ep": slotcon_r50_200ep,
    "slotcon-r18-small": slotcon_r18_small,
}
