"""What the recipes for one GPU and some ten thousand photos have in common.

Methods can only be compared where nothing else differs, so all of them see the
same crops with the same network, batch and number of epochs. What is a method's
own stays: colours (a method that trains on its first view alone needs views that
are drawn alike), queues and patches.

Everything is made for short runs. Fifty steps are an epoch, and a thousand
steps a run, where published ones have tens of thousands to a million: queues
are shorter and their teachers faster than published.

What is said about trials was seen on a CPU, with one seed: 60 to 400 steps of
32 photos (128 where it says so) in views of 64 pixels, mostly on stage c4.
That shows collapse and divergence. It does not rank methods, as nearly all
differences between their probes were within the noise; docs/results/methods.md
has what 100 seconds on a GPU give. Learning rates were not searched alike: two
or three were tried for CLoVE, BYOL, PixPro, SlotCon, VICRegL and MoCo, which
the other methods with queues follow, and one for supervised.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from clove_ssl.config.bases import MethodConfig
from clove_ssl.config.pretraining import (
    BackboneConfig,
    CheckpointConfig,
    OptimizerConfig,
    PretrainConfig,
)
from clove_ssl.config.views import ViewsConfig
from clove_ssl.methods.config import QueuedConfig, TeacherConfig

QueuedT = TypeVar("QueuedT", bound=QueuedConfig)
QUEUE = 4096  # a third of an epoch of thirteen thousand photos; more would hold each one often


def small_run(
    out: Path, method: MethodConfig, optimizer: OptimizerConfig | None = None
) -> PretrainConfig:
    """A run of ``method``, with LARS unless it has another optimizer."""
    return PretrainConfig(
        out=out,
        method=method,
        backbone=BackboneConfig(name="resnet18"),
        optimizer=optimizer or small_lars(),
        epochs=100,
        batch_size=256,
        checkpoints=CheckpointConfig(every_epochs=5.0),
    )


def small_views(views: ViewsConfig) -> ViewsConfig:
    """The crops of ``clove-r18-small``; still smaller ones of photos of 160 pixels are blurred."""
    return replace(views, global_size=160, global_scale=(0.2, 1.0), interpolation="bicubic")


def small_lars(lr: float = 4.0, weight_decay: float = 2e-5) -> OptimizerConfig:
    """LARS with a learning rate for short runs.

    With 4 CLoVE reached the score of 1, the rate of PixPro and SlotCon for batches of 256, with
    half of the images. After 250 steps of 128 photos BYOL's dense probe had 8.0 (6.9 to 8.9) with
    4 and 6.8 (5.9 to 7.4) with 1. After 200 steps of 64 photos PixPro had 6.0 against 5.8 and
    correspondence of 16.6 against 15.1 %, SlotCon 6.0 against 5.7 and 17.0 against 15.8 %, though
    both had fewer dimensions: 60 against 88, and 38 against 68.
    """
    return OptimizerConfig(lr=lr, weight_decay=weight_decay, warmup_epochs=2.0)


def steady_teacher() -> TeacherConfig:
    """A teacher that keeps its pace: one that slows down ends where half of a short run was."""
    return TeacherConfig(momentum=0.99, final_momentum=0.99)


def small_queued(out: Path, method: QueuedT) -> PretrainConfig:
    """A run of a method with queues, with CLoVE's optimizer.

    MoCo's SGD at 0.03 is made for a million steps. After 800 of them on a GPU all methods with
    queues were near random weights. After 250 steps of 128 photos on a CPU, the dense probe of
    MoCo had 5.7 with it (5.1 to 6.2), 7.7 with LARS at 1 (6.7 to 8.6) and 8.3 at 4 (7.3 to 9.2).

    Keys are normalised in two groups instead of eight: each costs a pass of its own, and the
    statistics of 128 images give less away than those of 32.
    """
    method = replace(
        method,
        views=small_views(method.views),
        teacher=steady_teacher(),
        queue_size=QUEUE,
        shuffle_groups=2,
    )
    return small_run(out, method)
