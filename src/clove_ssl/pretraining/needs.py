"""What a pre-training run needs at least, found out before its networks take any memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from clove_ssl.backbones.build import build_backbone
from clove_ssl.backbones.outlines import outlined
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.console import Console
from clove_ssl.data.loading import choose_workers
from clove_ssl.pretraining.choices import PretrainPlan, plan_run
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.training.needs import (
    Needs,
    announce_needs,
    check_disk,
    check_memory,
    check_time,
    checkpoint_space,
    weights_and_checkpoint,
)
from clove_ssl.training.processes import Process

_LOWER = (
    "--micro-batch, --batch-size, the sizes of the views (--method.views...), data.workers, or the "
    "widths and the queue of the method"
)


@dataclass(frozen=True)
class PretrainNeeds:
    """What is certain about a run."""

    memory: Needs  # of each process
    disk: int  # bytes that its checkpoints will still take

    def announce(self, console: Console) -> None:
        """Say them."""
        announce_needs(self.memory, self.disk, console)


def check_needs(config: PretrainConfig, process: Process, *, images: int) -> PretrainNeeds | None:
    """Refuse a run that cannot fit; nothing where a method cannot be built without memory."""
    kind, here = process.device.type, process.local_world_size
    plan = plan_run(config, images=images, processes=process.world_size, device_type=kind)
    check_time(plan.total_steps, plan.total_steps * plan.batch_size, processes=process.world_size)
    try:
        memory = memory_needs(config, plan, process)
    except (RuntimeError, NotImplementedError):  # of a plug-in that reads the values of its weights
        return None
    needs = PretrainNeeds(memory, _space(config, plan, memory.checkpoint))
    check_memory(memory, process.device, processes_here=here, lower=_LOWER)
    check_disk(
        needs.disk,
        config.out,
        what="The checkpoints of this run",
        lower="--checkpoints.keep or the sizes of the method",
    )
    return needs


def memory_needs(config: PretrainConfig, plan: PretrainPlan, process: Process) -> Needs:
    """Bytes of a process; all but the backbone, whose size its name bounds, needs no memory."""
    with torch.random.fork_rng(devices=[]):
        backbone = build_backbone(replace(config.backbone, weights=None)).to("meta")
    with outlined():
        network = config.method.build(backbone)
    states = 2 if config.optimizer.name == "adamw" else 1
    weights, checkpoint = weights_and_checkpoint(network, states if config.method.trains else 0)
    values = plan.micro_batch * sum(3 * spec.size**2 for spec in config.method.view_specs())
    on_cpu = process.device.type == "cpu"
    workers, _ = choose_workers(
        config.data, processes_here=process.local_world_size, trains_on_cpu=on_cpu
    )
    ready = workers * config.data.prefetch if on_cpu else 0  # of views, which a GPU may render
    return Needs(weights, (4 if on_cpu else 2) * values, max(1, ready) * values, checkpoint)


def _space(config: PretrainConfig, plan: PretrainPlan, checkpoint: int) -> int:
    return checkpoint_space(
        checkpoint,
        RunDirectory(config.out).checkpoints,
        keep=config.checkpoints.keep,
        milestones=plan.total_steps // plan.milestone_every if plan.milestone_every else 0,
    )
