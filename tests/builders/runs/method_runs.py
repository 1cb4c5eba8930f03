"""Every method that trains, small enough for a test: config, network, batch and run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from builders.runs import contrastive_runs, foreground_runs, window_runs
from builders.runs.tiny_runs import tiny_config, tiny_method
from builders.tasks.tiny_backbone import TinyBackbone
from builders.tasks.tiny_pyramid import TinyPyramid
from references.methods.clove_plus import TinyMaps
from torch import nn

from clove_ssl.config.bases import MethodConfig
from clove_ssl.config.pretraining import (
    BackboneConfig,
    CheckpointConfig,
    OptimizerConfig,
    PretrainConfig,
)
from clove_ssl.config.views import ViewsConfig
from clove_ssl.methods.clove.config import AttentionConfig, LossConfig
from clove_ssl.methods.clove_plus.config import CLoVEPlusConfig, WholeConfig
from clove_ssl.methods.config import ProjectorConfig, TeacherConfig
from clove_ssl.methods.pixpro.config import InstanceConfig, PixProConfig
from clove_ssl.methods.slotcon.config import SlotConConfig, SlotHeadConfig
from clove_ssl.methods.supervised.config import SupervisedConfig, plain_crop
from clove_ssl.methods.vicregl.config import VICRegLConfig
from clove_ssl.registry import METHODS

TRAINED = tuple(name for name in METHODS.names() if METHODS.load(name).trains)
TAUGHT = tuple(name for name in TRAINED if METHODS.load(name)().has_teacher)
QUEUED = tuple(name for name in TRAINED if METHODS.load(name).queues)
TEACHER = TeacherConfig(momentum=0.9, final_momentum=0.9)
WITH_TEACHER: dict[str, Any] = {"targets": "teacher", "teacher": TEACHER}  # of CLoVE Plus
FIRST_STAGES = BackboneConfig(name="resnet18", stage="c3")
WHOLE = {  # for methods that need all stages
    "clove-plus": BackboneConfig(name="timm:test_resnet"),
    "detco": BackboneConfig(name="resnet18"),  # patches are too small for fewer channels
    "resim": BackboneConfig(name="timm:test_resnet"),  # of at most 96 channels
}
DEEP = tuple(WHOLE)


def small_method(name: str, *, size: int | None = None, **changes: Any) -> MethodConfig:
    """A method with few channels and, where it has one, a queue that wraps soon."""
    for group in (contrastive_runs, foreground_runs, window_runs):
        if name in group.NAMES:
            return group.small_method(name, size=size or (64 if name == "resim" else 16), **changes)
    views = ViewsConfig(global_size=size or (32 if name == "clove-plus" else 16), local_count=0)
    configs: Mapping[str, MethodConfig] = {
        "clove": replace(
            tiny_method(),
            views=replace(views, local_count=2, local_size=views.global_size // 2),
            teacher=TEACHER,
        ),
        "clove-plus": CLoVEPlusConfig(
            views=replace(views, local_count=2, local_size=views.global_size // 2),
            projector=ProjectorConfig(hidden=32, out=16),
            attention=AttentionConfig(heads=2),
            loss=LossConfig(top_k=4),
            whole=WholeConfig(width=9),
        ),
        "pixpro": PixProConfig(
            views=views,
            projector=ProjectorConfig(hidden=10, out=8, bias=True, last_norm="none"),
            instance=InstanceConfig(weight=1.0, hidden=10, out=5),
            teacher=TEACHER,
        ),
        "slotcon": SlotConConfig(
            views=views, prototypes=7, head=SlotHeadConfig(hidden=10, out=8), teacher=TEACHER
        ),
        "supervised": SupervisedConfig(
            views=replace(plain_crop(), global_size=views.global_size), classes=5
        ),
        "vicregl": VICRegLConfig(views=views, global_width=9, local_width=5, matches=(6, 3)),
    }
    # A method that was added needs no entry here; with one it is tried with fewer channels.
    config = configs[name] if name in configs else replace(METHODS.load(name)(), views=views)
    return replace(config, **changes)


def tiny_network(name: str) -> nn.Module:
    """What can stand in for the backbone of a method."""
    networks = {
        "clove-plus": TinyMaps,
        "detco": foreground_runs.TinyStages,
        "resim": TinyPyramid,
    }
    return networks.get(name, TinyBackbone)()


def tiny_built(config: MethodConfig) -> Any:
    """The method in float64; its weights are far from zero, and the teacher's from the student's.

    Heads that start small, or a teacher equal to its student, would hide mistakes.
    """
    torch.manual_seed(0)
    method = config.build(tiny_network(config.name)).double()  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in method.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return method


def method_run(out: Path, name: str, **changes: Any) -> PretrainConfig:
    """Ten steps of mostly two micro-batches, on the first stages of a ResNet-18 or on all stages.

    Steps are small, and groups of batch norm not too small, or runs would blow up what another
    order of additions changes.
    """
    specials: dict[str, dict[str, Any]] = {
        "inscon": {"shuffle_groups": 1},
        "resim": {"shuffle_groups": 1},
        # Small crops that are drawn again when they do not overlap, as not all will.
        "slotcon": {
            "views": ViewsConfig(global_size=32, local_count=0, global_scale=(0.02, 0.1)),
            "redraws": 4,
        },
        "supervised": {"classes": None},
    }
    config = tiny_config(
        out,
        method=small_method(name, size=64 if name in DEEP else 32, **specials.get(name, {})),
        backbone=WHOLE.get(name, FIRST_STAGES),
        optimizer=OptimizerConfig(name="sgd", lr=0.02, warmup_epochs=0.0),
        checkpoints=CheckpointConfig(every_epochs=2.0, min_steps=1),
        steps=10,
        micro_batch=8 if name == "vicregl" else 4,  # it decorrelates the images of a pass
    )
    return replace(config, **changes)
