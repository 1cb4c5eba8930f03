"""The same step by torch's own kernels, by ours, and captured, one after the other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

from clove_ssl.backbones.build import can_fuse_norms, fuse_norms
from clove_ssl.bench.clock import Measurement
from clove_ssl.bench.command import Bench
from clove_ssl.bench.step import PROGRESS
from clove_ssl.config.bases import MethodConfig
from clove_ssl.config.pretraining import OptimizerConfig
from clove_ssl.methods.base import Method, Progress
from clove_ssl.methods.compiled import Capturable
from clove_ssl.optimizers import build_optimizer
from clove_ssl.training.captured import CapturedPasses, why_not_captured
from clove_ssl.views.batch import ViewBatch

Way = Literal["torch's kernels", "our kernels", "our kernels, captured"]

KINDS_AMONG = 100  # steps


def measure_ways(bench: Bench, method: MethodConfig, batch: ViewBatch) -> None:
    """Steps that are not compiled; on a GPU, as only there is a difference."""
    if bench.device.type != "cuda":
        return
    measure_way(bench, bench.build(method, compiles=False), batch, "torch's kernels")
    model = bench.build(method, compiles=False)
    if can_fuse_norms(model):
        fuse_norms(model)
        measure_way(bench, model, batch, "our kernels")
    if reason := why_not_captured(model):
        bench.say(f"steps are not captured: {reason}")
    else:
        usual = measure_way(bench, model, batch, "our kernels, captured")
        measure_other_kinds(bench, model, batch, usual, way="our kernels, captured")


def measure_other_kinds(
    bench: Bench, model: Method, batch: ViewBatch, usual: Measurement, *, way: Way
) -> None:
    """What steps that do more than usual ones, such as measuring, add to the mean of all."""
    for steps in other_kinds(model):
        progress = Progress(steps[0], PROGRESS.total_steps)
        found = measure_way(bench, model, batch, way, progress)
        added = (found.milliseconds - usual.milliseconds) * len(steps) / KINDS_AMONG
        bench.record_share(f"  added by {len(steps)} of {KINDS_AMONG} steps", added, step=usual)


def other_kinds(model: Method) -> list[list[int]]:
    """The steps of each kind but that of the first step."""
    assert isinstance(model, Capturable), "the caller has asked why_not_captured"
    kinds: dict[Hashable, list[int]] = defaultdict(list)
    for step in range(KINDS_AMONG):
        kinds[model.step_kind(Progress(step, PROGRESS.total_steps))].append(step)
    return [steps for steps in kinds.values() if PROGRESS.step not in steps]


def measure_way(
    bench: Bench, model: Method, batch: ViewBatch, way: Way, progress: Progress = PROGRESS
) -> Measurement:
    """A whole step of a method."""
    captures = way == "our kernels, captured"
    passes = CapturedPasses(model, bench.precision, bench.device) if captures else None
    optimizer = build_optimizer(OptimizerConfig(), model, peak_lr=1e-3)

    def step() -> None:
        if passes is not None and passes.covers(batch, progress):
            passes.run(batch, progress, check=lambda loss: None)
        else:
            with bench.precision.autocast():
                output = model(batch, progress)
            output.loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        model.after_step(progress)

    name = f"step, {way}" if progress == PROGRESS else f"step of another kind, {way}"
    with _stream(passes):
        return bench.measure(name, step)


def _stream(passes: CapturedPasses | None) -> AbstractContextManager[None]:
    return nullcontext() if passes is None else passes.own_stream()
