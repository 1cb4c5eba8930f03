"""Recipes for CLoVE Plus: those of CLoVE with another method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

from clove_ssl.config.pretraining import LoggingConfig, PretrainConfig
from clove_ssl.methods.clove import recipes as clove
from clove_ssl.methods.clove.config import CLoVEConfig
from clove_ssl.methods.clove_plus.config import CLoVEPlusConfig

STEM_SCALE = 16.0
"""Fine-tuning then turns the stem no faster than DenseCL's: docs/results/clove-plus.md."""
LAST_NORM = 0.5
"""Detectors then soon learn what the last stage does not tell: docs/results/clove-plus.md."""
CPU_VARIANCE = 100.0
"""Covariances then count for more, which short runs on a CPU gain from, and those on a GPU do not:
docs/results/clove-plus.md."""


def clove_plus_r50_200ep(out: Path) -> PretrainConfig:
    """CLoVE Plus with CLoVE's published setting: ResNet-50, 200 epochs of ImageNet.

    Command: ``torchrun --nproc-per-node 8 -m clove_ssl pretrain clove-plus-r50-200ep --data
    "imagenet/{000000..001281}.tar" --out runs/plus``.
    Cost: 256 million images; there is no teacher's forward pass, but a second projector and
    attention, and a wide expander. Expected: not run here.
    """
    return _with_plus(clove.clove_r50_200ep(out))


def clove_plus_r18_small(out: Path) -> PretrainConfig:
    """CLoVE Plus with ResNet-18 on one GPU and a few thousand to a hundred thousand photos.

    Command: ``clove pretrain clove-plus-r18-small --data photos/ --out runs/plus``.
    Cost: about a sixth more than ``clove-r18-small``, with the same views and optimizer.
    Expected: after 100 seconds of an H200 on 13,301 photos 21.5 mIoU on VOC's dense probe, 81.4 %
    k-NN on Imagenette; see docs/results/clove-plus.md.
    """
    return _with_plus(clove.clove_r18_small(out))


def clove_plus_r18_cpu(out: Path) -> PretrainConfig:
    """CLoVE Plus with ResNet-18 in minutes on a CPU, for a few hundred photos.

    Command: ``clove pretrain clove-plus-r18-cpu --data photos/ --out runs/cpu --minutes 8``.
    Cost: a tenth of a second of one core per image. Expected: after 250 steps on 400 photos of 160
    pixels cells of c5 find their place in another view 66.9 % of the time on these photos, those
    of random weights 43.4 %.
    """
    config = clove_plus_r18_small(out)
    method = config.method
    assert isinstance(method, CLoVEPlusConfig)
    return replace(
        config,
        method=replace(
            method,
            views=replace(method.views, global_size=96, local_size=48),
            projector=replace(method.projector, hidden=512, out=128),
            whole=replace(method.whole, width=512, variance=CPU_VARIANCE),
        ),
        optimizer=replace(config.optimizer, lr=8.0, warmup_epochs=1.0),
        batch_size=32,
        epochs=25,
        logging=LoggingConfig(every=5),
    )


def _with_plus(config: PretrainConfig) -> PretrainConfig:
    """A run of CLoVE as one of CLoVE Plus; what both have is the same, but for sizes of weights."""
    method = config.method
    shared = {each.name: getattr(method, each.name) for each in fields(CLoVEConfig)}
    backbone = replace(config.backbone, stem_scale=STEM_SCALE, last_norm=LAST_NORM)
    return replace(config, method=CLoVEPlusConfig(**shared), backbone=backbone)


RECIPES: dict[str, Callable[[Path], PretrainConfig]] = {
    "clove-plus-r50-200ep": clove_plus_r50_200ep,
    "clove-plus-r18-small": clove_plus_r18_small,
    "clove-plus-r18-cpu": clove_plus_r18_cpu,
}
