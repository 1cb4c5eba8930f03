"""A run that goes on elsewhere, with its images moved, or for longer than was planned.

What a run computes follows from its config, the names of its images and the step, none of which
knows where anything lies. So a run or its images can be moved and the run goes on exactly. A
longer run is another one from the next step on, since its schedules end later; that is said.

What it has learned can also be looked at without going on: its method, with the weights of its
newest checkpoint.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from clove_ssl.backbones.build import build_backbone
from clove_ssl.config import files
from clove_ssl.config.pretraining import SCENES, PretrainConfig
from clove_ssl.config.resuming import ResumeChanges
from clove_ssl.errors import UserError
from clove_ssl.methods.base import Method
from clove_ssl.runs.directory import RunDirectory, newest_intact
from clove_ssl.runs.provenance import starting_folder
from clove_ssl.training.checkpoints import fitting, load_state
from clove_ssl.training.loop import TrainingLoop
from clove_ssl.training.plan import RunPlan


def read_continued(run: RunDirectory, changes: ResumeChanges) -> PretrainConfig:
    """The config of a run as it shall go on from here."""
    config = _found_again(run, files.load(PretrainConfig, run.config))
    if changes.micro_batch is not None:
        config = replace(config, micro_batch=changes.micro_batch)
    if changes.data:
        first, *more = changes.data
        moved = replace(config.data, source=first, more=tuple(more)).located()
        config = replace(config, data=moved)
    else:
        _check_still_there(run, config)
    if changes.max_bad is not None:
        config = replace(config, data=replace(config.data, max_bad=changes.max_bad))
    if changes.epochs is not None:
        config = replace(config, epochs=changes.epochs, steps=None)
    if changes.steps is not None:
        config = replace(config, steps=changes.steps)
    return config


def _check_still_there(run: RunDirectory, config: PretrainConfig) -> None:
    """Ask where the images are now, if a folder or file of them was moved."""
    for source in (config.data.source, *config.data.more):
        if os.path.isabs(source) and not set("*?[{") & set(source) and not os.path.exists(source):
            raise UserError(
                f"The images of this run were at {source}, which does not exist. Say where "
                f"they are now: clove resume {run.path} --data FOLDER"
            )


def _found_again(run: RunDirectory, config: PretrainConfig) -> PretrainConfig:
    """Paths of a run of an earlier version are relative to the folder it was started in."""
    folder = starting_folder(run, config.out)
    named = [_below(folder, each) for each in (config.data.source, *config.data.more)]
    data = replace(config.data, source=named[0], more=tuple(named[1:]))
    return replace(config, data=data, out=run.path)


def _below(folder: Path | None, source: str) -> str:
    """A relative source by its full name, if it is found below a folder."""
    if folder is None or source == SCENES or "://" in source or os.path.isabs(source):
        return source
    there = str(folder / source)
    known = there[: min((there.find(sign) for sign in "*?[{" if sign in there), default=None)]
    return there if os.path.exists(known) or os.path.isdir(os.path.dirname(known)) else source


def take_over(
    run: RunDirectory, loop: TrainingLoop, config: PretrainConfig, changes: ResumeChanges
) -> None:
    """Make what changes part of the run; called when everything else has been checked."""
    before = files.load(PretrainConfig, run.config)
    if changes.changes_length:
        _check_length(loop.plan, loop.step)
        _explain_length(before, loop)
    if not loop.process.is_first:
        return
    if changes.changes_length and run.backbone.is_file() and loop.step < loop.plan.total_steps:
        kept = run.backbone.with_name(f"backbone-step-{loop.step}.safetensors")
        run.backbone.rename(kept)
        loop.console.say(f"The backbone of step {loop.step:,} is kept as {kept}")
    if changes.data or changes.max_bad is not None or changes.changes_length:
        files.save(replace(config, micro_batch=before.micro_batch), run.config)


def _check_length(plan: RunPlan, done: int) -> None:
    if plan.total_steps < done:
        raise UserError(
            f"This run has done {done:,} steps ({plan.epoch(done):.1f} epochs), more than the "
            f"{plan.total_steps:,} that were asked for. Ask for more, or start a new run with "
            "another --out."
        )


def _explain_length(before: PretrainConfig, loop: TrainingLoop) -> None:
    """Say what another length does to the schedules."""
    plan, planned = loop.plan, before.total_steps(loop.plan.images)
    if plan.total_steps == planned or loop.step >= plan.total_steps:
        return
    loop.console.say(
        f"The run now has {plan.total_steps:,} steps instead of {planned:,}. Its schedules span "
        f"the new length from step {loop.step + 1:,} on: the learning rate continues at "
        f"{loop.lr(loop.step):.3g}. So it is not the same as a run that was planned this long "
        "from the start; what was learned so far is kept."
    )


def unrestored_method(config: PretrainConfig) -> Method:
    """The method of a run with random weights."""
    return config.method.build(build_backbone(replace(config.backbone, weights=None)))


def restore_method(run: RunDirectory, config: PretrainConfig) -> tuple[Method, int]:
    """The method with the weights of the newest intact checkpoint, in eval mode, and its step."""
    checkpoint = newest_intact(run.checkpoints)
    if checkpoint is None:
        raise UserError(
            f"{run.path} has no intact checkpoint, and its export lacks what was asked for. "
            f"Type: clove resume {run.path}"
        )
    method = unrestored_method(config)
    with fitting(checkpoint.path):
        method.load_state_dict(load_state(checkpoint.path)["learner"])
    method.eval()
    return method, checkpoint.step
