"""Pre-training on mosaics with the smallest network that learns anything from them.

Five layers lead to the stage that is probed, c3, with 16 channels and cells of 8
pixels; two more are for methods that look at deeper stages. Some hundred steps of
sixteen images take seconds on one core. Batches of one kind of views are rendered
once and shared by all methods that look at them.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from builders.files.mosaics import Mosaics
from torch import nn

from clove_ssl.backbones.build import Backbone
from clove_ssl.config.pretraining import DataConfig, OptimizerConfig
from clove_ssl.config.views import ViewSpec
from clove_ssl.data.labels.classified import LabelledImages
from clove_ssl.data.order import ImageOrder
from clove_ssl.data.reading import RenderedViews, view_batch
from clove_ssl.methods import health
from clove_ssl.methods.base import Method, Progress
from clove_ssl.optimizers import build_optimizer
from clove_ssl.probes.dense import dense_probe
from clove_ssl.probes.features import FrozenFeatures
from clove_ssl.schedules import cosine
from clove_ssl.views.batch import ViewBatch

SIZE = 64
BATCH = 16
BATCHES = 50


class Measured(NamedTuple):
    """What can be said about frozen features."""

    miou: float
    std: float
    rank: float


class _Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shallow = nn.Sequential(_layer(3, 16, 2), _layer(16, 16, 2))
        self.middle = nn.Sequential(_layer(16, 24, 1), _layer(24, 24, 2), _layer(24, 16, 1))
        self.deep = _layer(16, 16, 2)
        self.deepest = _layer(16, 16, 2)


def _layer(channels: int, out: int, stride: int) -> nn.Module:
    conv = nn.Conv2d(channels, out, 3, stride, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out), nn.ReLU())


def small_network(stage: str = "c3", *, seed: int = 0) -> Backbone:
    """A backbone of 15,000 weights up to c3, and as many as 20,000 with c4 and c5."""
    torch.manual_seed(seed)
    parts = {"c2": ("shallow",), "c3": ("middle",), "c4": ("deep",), "c5": ("deepest",)}
    return Backbone(_Body(), name="small", parts=parts, stage=stage)


@cache
def batches(specs: tuple[ViewSpec, ...]) -> list[ViewBatch]:
    """Batches with these views and with the classes of their images."""
    mosaics = Mosaics(20 * BATCH, size=SIZE, seed=0)
    order = ImageOrder(len(mosaics), seed=0)
    everything = order.draws(0, len(mosaics)).indices
    source = LabelledImages(
        mosaics, everything, mosaics.main_class, class_names=mosaics.class_names
    )
    reader = RenderedViews(source, specs, DataConfig(), seed=0)
    starts = range(0, BATCHES * BATCH, BATCH)
    rendered = (reader[order.draws(start, start + BATCH)] for start in starts)
    return [
        view_batch(each, specs).normalized(torch.float32, channels_last=False) for each in rendered
    ]


def train(method: Method, specs: tuple[ViewSpec, ...], *, steps: int, lr: float) -> None:
    """Run the steps with AdamW and a learning rate that falls to zero."""
    optimizer = build_optimizer(
        OptimizerConfig(name="adamw", weight_decay=1e-4), method.train(), lr
    )
    rate = cosine(lr, 0.0, steps)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        progress = Progress(step, steps)
        optimizer.zero_grad()
        method(batches(specs)[step % BATCHES], progress).loss.backward()
        optimizer.step()
        method.after_step(progress)


@cache
def _labelled() -> tuple[Mosaics, Mosaics]:
    return Mosaics(60, size=SIZE, seed=1), Mosaics(40, size=SIZE, seed=2)


def measure(backbone: Backbone) -> Measured:
    """The dense probe of c3, and the spread of the cells it reads."""
    learn, test = _labelled()
    probed = dense_probe(backbone, learn, test, size=SIZE, stage="c3", max_cells=4000)
    images = torch.stack([test.load(index)[0] for index in range(len(test))])
    extract = FrozenFeatures(backbone, ["c3"], device="cpu")
    extract.calibrate(images)
    cells = extract(images).flatten(2).mT.flatten(0, 1)  # (N, D)
    return Measured(
        probed.miou,
        float(health.feature_std(cells)),
        float(health.effective_rank(cells - cells.mean(0))),
    )
