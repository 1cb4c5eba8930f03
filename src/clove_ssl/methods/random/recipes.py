"""Recipes for random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from clove_ssl.config.pretraining import BackboneConfig, PretrainConfig
from clove_ssl.methods.random.config import RandomConfig


def random_r50(out: Path) -> PretrainConfig:
    """ResNet-50 with random weights, as a finished run without steps.

    Command: ``clove pretrain random-r50 --out runs/random``. Cost: seconds.
    Expected: a baseline without pre-training; ``--seed`` gives other weights.
    """
    return PretrainConfig(out=out, method=RandomConfig())


def random_r18(out: Path) -> PretrainConfig:
    """ResNet-18 with random weights, as a finished run without steps.

    Command: ``clove pretrain random-r18 --out runs/random``. Cost: seconds.
    Expected: as ``random-r50``.
    """
    return replace(random_r50(out), backbone=BackboneConfig(name="resnet18"))


RECIPES: dict[str, Callable[[Path], PretrainConfig]] = {
    "random-r50": random_r50,
    "random-r18": random_r18,
}
