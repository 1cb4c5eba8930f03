"""Recipes for VICRegL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from clove_ssl.config.pretraining import CheckpointConfig, OptimizerConfig, PretrainConfig
from clove_ssl.methods.config import wide_crops
from clove_ssl.methods.small_recipes import small_lars, small_run, small_views
from clove_ssl.methods.vicregl.config import VICRegLConfig


def vicregl_r50_300ep(out: Path) -> PretrainConfig:
    """VICRegL as released: ResNet-50, 300 epochs of ImageNet.

    Command: ``torchrun --nproc-per-node 8 -m clove_ssl pretrain vicregl-r50-300ep --data
    "imagenet/{000000..001281}.tar" --out runs/vicregl``.
    Cost: 384 million images, two views each.
    Expected: unknown. The authors report 59.5 VOC AP; three parties measured 26.5 to 27.6 with
    the released weights.
    """
    return PretrainConfig(
        out=out,
        method=VICRegLConfig(matches=(20, 4), mirror_grid=False),
        optimizer=OptimizerConfig(
            lr=0.2, weight_decay=1e-6, warmup_epochs=10.0, warmup_start=0.0, final_lr=0.001
        ),
        epochs=300,
        batch_size=2048,
        checkpoints=CheckpointConfig(milestone_epochs=50),
    )


def vicregl_r18_small(out: Path) -> PretrainConfig:
    """VICRegL with a ResNet-18 on one GPU and a few thousand to a hundred thousand photos.

    Command: ``clove pretrain vicregl-r18-small --data photos/ --out runs/vicregl``.
    Cost: less than ``pixpro-r18-small``, since there is no teacher. Expanders are narrower than
    published, since covariances of many channels over the few images of a batch are noise. The
    peak learning rate is the published one.
    Expected: a loss that falls slowly. In trials of 100 steps correspondence rose above that of
    random weights (31 against 21 %) while k-NN accuracy did not (26 against 29 %). A rate of 0.5
    gave 26 and 29 %, one of 5 halved the rank, so it stays at 1.6.
    """
    method = VICRegLConfig(
        views=small_views(wide_crops("bicubic")),
        global_width=1024,
        local_width=256,
        # Maps are 5x5 here, so the 20 pairs of 7x7 maps would be nearly all there are.
        matches=(10, 10),
    )
    return small_run(out, method, small_lars(lr=1.6, weight_decay=1e-6))


RECIPES: dict[str, Callable[[Path], PretrainConfig]] = {
    "vicregl-r50-300ep": vicregl_r50_300ep,
    "vicregl-r18-small": vicregl_r18_small,
}
