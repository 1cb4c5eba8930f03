"""What a pre-training run needs at least, found out before its networks take any memory."""

from __future__ import annotations

from dataclasses import replace

import torch

from clove_ssl.backbones.build import build_backbone
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.console import Console
from clove_ssl.pretraining.choices import Choices
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.training.needs import (
    Needs,
    announce_needs,
    check_disk,
    check_memory,
    checkpoint_space,
    weights_and_checkpoint,
)
from clove_ssl.training.processes import Process

_LOWER = (
    "--micro-batch, --batch-size, the sizes of the views (--method.views...), data.workers, or the "
    "widths and the queue of the method"
)


def pretraining_needs(config: PretrainConfig, choices: Choices) -> Needs:
    """Bytes of a process; the networks are built without memory."""
    plan = choices.plan
    with torch.device("meta"):
        network = config.method.build(build_backbone(replace(config.backbone, weights=None)))
    states = 2 if config.optimizer.name == "adamw" else 1
    weights, checkpoint = weights_and_checkpoint(network, states if config.method.trains else 0)
    values = plan.micro_batch * sum(3 * spec.size**2 for spec in config.method.view_specs())
    per_value = 4 if choices.precision.device_type == "cpu" else 2
    in_workers = 0 if choices.renders_on_gpu else choices.workers.value
    waiting = max(1, in_workers * config.data.prefetch) * values
    return Needs(weights, per_value * values, waiting, checkpoint)


def check_needs(config: PretrainConfig, choices: Choices, process: Process) -> Needs | None:
    """Refuse a run that cannot fit; nothing where a method cannot be built without memory."""
    try:
        needs = pretraining_needs(config, choices)
    except (RuntimeError, NotImplementedError):  # of a plug-in that reads the values of its weights
        return None
    here = process.local_world_size
    check_memory(needs, process.device, processes_here=here, lower=_LOWER)
    check_disk(
        _space(config, choices, needs),
        config.out,
        what="The checkpoints of this run",
        lower="--checkpoints.keep or the sizes of the method",
    )
    return needs


def say_needs(
    config: PretrainConfig, choices: Choices, needs: Needs | None, console: Console
) -> None:
    """What a run will take, where it is known."""
    if needs is not None:
        announce_needs(needs, _space(config, choices, needs), console)


def _space(config: PretrainConfig, choices: Choices, needs: Needs) -> int:
    plan = choices.plan
    return checkpoint_space(
        needs.checkpoint,
        RunDirectory(config.out).checkpoints,
        keep=config.checkpoints.keep,
        milestones=plan.total_steps // plan.milestone_every if plan.milestone_every else 0,
    )
