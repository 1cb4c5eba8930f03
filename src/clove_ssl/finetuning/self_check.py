"""What a fine-tuning run is about to do, measured rather than promised.

Published transfer scores differ by points because of details that nobody printed: a prefix that
did not match, norms that were frozen, channels in another order. So they are printed, and stored
in ``self_check.json``.
"""

from __future__ import annotations

import json
from collections import Counter

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torchvision.ops import FrozenBatchNorm2d

from clove_ssl.atomic import write_text
from clove_ssl.config.finetuning import RANDOM, FinetuneConfig
from clove_ssl.console import Console
from clove_ssl.errors import counted
from clove_ssl.finetuning.plan import FinetunePlan
from clove_ssl.finetuning.starting_point import StartingPoint
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.tasks.base import TaskData, TaskModel
from clove_ssl.tasks.rcnn.pixels import PIXEL_MEAN, PIXEL_STD

Facts = dict[str, str]
MOST_EPOCHS = 500
"""Published schedules have 12 to 50; a run of so many is meant for more images."""
USUAL_EPOCHS = 50
_NORMS = (_BatchNorm, FrozenBatchNorm2d, nn.GroupNorm, nn.LayerNorm)


def examine_start(
    config: FinetuneConfig,
    plan: FinetunePlan,
    start: StartingPoint,
    model: TaskModel,
    data: TaskData,
) -> Facts:
    """Everything that is known to move scores, by name."""
    return {
        "backbone": start.describe(),
        "norms": _norms(model),
        **model.facts(),
        "initial std": ", ".join(
            f"{name.rpartition('.')[2]} {spread:.2g}"
            for name, spread in head_spreads(model).items()
            if name.split(".")[-1] in model.predictors
        ),
        "parameters": _parameters(model),
        "channel order": "RGB",
        "mean": " ".join(map(str, PIXEL_MEAN)),
        "std": " ".join(map(str, PIXEL_STD)),
        "training": f"{data.train_images:,} images, {len(data.class_names)} classes",
        "test": f"{data.test_images:,} images",
        "batch": (
            f"{plan.batch_size} images: {counted(plan.processes, 'process', 'processes')} x "
            f"{plan.micro_batches} x {plan.micro_batch}"
        ),
        "learning rate": f"peak {plan.peak_lr:g}, {counted(plan.warmup_steps, 'warm-up step')}",
        "steps": _steps(plan),
        "weight decay": f"{config.solver.weight_decay:g}, none for norms",
    }


def announce(
    config: FinetuneConfig, plan: FinetunePlan, facts: Facts, data: TaskData, console: Console
) -> None:
    """Say the facts, and in warnings how the run leaves its protocol."""
    console.say(f"Fine-tuning on {config.task.name}")
    for name, value in facts.items():
        console.choice(name, value)
    for note in data.notes if config.task.is_published else ():  # else they were said before
        console.say(f"  {note}")
    # Those of a part of the images are of the part alone; those of the whole were said before.
    for problem in data.problems if config.task.is_published or config.fraction < 1 else ():
        console.warn(problem)
    for difference in config.differences():
        console.warn(f"not the published protocol: {difference}")
    epochs = plan.epoch(plan.total_steps)
    if config.task.is_published and not config.data.uses_scenes and epochs > MOST_EPOCHS:
        console.warn(
            f"{plan.total_steps:,} steps of {plan.batch_size} are {epochs:,.0f} epochs of "
            f"{data.train_images:,} images; {config.task.name} has the schedule of a data set of "
            "thousands. For images of your own type clove finetune detect (or instances, segment, "
            "keypoints), or shorten this run: --steps "
            f"{max(1, round(USUAL_EPOCHS * data.train_images / plan.batch_size))}"
        )
    if config.backbone == RANDOM and "fixed batch norm" in facts["norms"]:
        console.warn(
            "the batch norms of a random backbone are frozen, with statistics that fit no image. "
            "For a fair baseline, train them: --task.detector.backbone-norm batch"
        )
    if plan.warmup_steps >= plan.total_steps:
        console.warn(
            f"the warm-up ({plan.warmup_steps} steps) is longer than the run "
            f"({plan.total_steps}), so the peak learning rate is never reached."
        )


def write_self_check(
    run: RunDirectory, config: FinetuneConfig, facts: Facts, model: TaskModel, data: TaskData
) -> None:
    """Store the facts beside the run."""
    content = {
        "facts": facts,
        "architecture": model.backbone.name,
        "differences": config.differences(),
        "notes": list(data.notes),
        "head_spreads": head_spreads(model),
    }
    write_text(run.self_check, json.dumps(content, indent=1) + "\n")


def _steps(plan: FinetunePlan) -> str:
    decays = ", ".join(f"{step:,}" for step in plan.decay_steps) or "never"
    return (
        f"{plan.total_steps:,} ({plan.epoch(plan.total_steps):.1f} epochs), times {plan.decay:g} "
        f"at {decays}"
    )


def head_spreads(model: TaskModel) -> dict[str, float]:
    """Standard deviations of the weights that came from no file, by the name of their layer."""
    known = {id(parameter) for parameter in model.backbone.parameters()}
    return {
        name.removesuffix(".weight"): parameter.std().item()
        for name, parameter in model.named_parameters()
        if parameter.ndim > 1 and id(parameter) not in known
    }


def _norms(model: nn.Module) -> str:
    """Kinds of norms with their numbers; a batch norm without gradients is called fixed."""
    kinds = Counter(_kind(module) for module in model.modules() if isinstance(module, _NORMS))
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "none"


def _kind(module: nn.Module) -> str:
    name = type(module).__name__
    if isinstance(module, FrozenBatchNorm2d):
        return "fixed batch norm"
    if not isinstance(module, _BatchNorm):
        return name
    shared = isinstance(module, nn.SyncBatchNorm) or name.startswith("Synchronized")
    trained = all(parameter.requires_grad for parameter in module.parameters())
    text = "trained batch norm" if trained else "fixed batch norm"
    return f"{text} over all processes" if shared else text


def _parameters(model: nn.Module) -> str:
    counts = Counter[bool]()
    for parameter in model.parameters():
        counts[parameter.requires_grad] += parameter.numel()
    return f"{counts[True]:,} trained, {counts[False]:,} frozen"
