"""The same step by torch's own kernels, by ours, and captured, one after the other."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

from clove_ssl.backbones.build import can_fuse_norms, fuse_norms
from clove_ssl.bench.command import Bench
from clove_ssl.bench.step import PROGRESS
from clove_ssl.config.bases import MethodConfig
from clove_ssl.config.pretraining import OptimizerConfig
from clove_ssl.methods.base import Method
from clove_ssl.optimizers import build_optimizer
from clove_ssl.training.captured import CapturedPasses, why_not_captured
from clove_ssl.views.batch import ViewBatch

Way = Literal["torch's kernels", "our kernels", "our kernels, captured"]


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
        measure_way(bench, model, batch, "our kernels, captured")


def measure_way(bench: Bench, model: Method, batch: ViewBatch, way: Way) -> None:
    """A whole step of a method."""
    captures = way == "our kernels, captured"
    passes = CapturedPasses(model, bench.precision, bench.device) if captures else None
    optimizer = build_optimizer(OptimizerConfig(), model, peak_lr=1e-3)

    def step() -> None:
        if passes is not None and passes.covers(batch, PROGRESS):
            passes.run(batch, PROGRESS, check=lambda loss: None)
        else:
            with bench.precision.autocast():
                output = model(batch, PROGRESS)
            output.loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        model.after_step(PROGRESS)

    with _stream(passes):
        bench.measure(f"step, {way}", step, images=bench.config.batch)


def _stream(passes: CapturedPasses | None) -> AbstractContextManager[None]:
    return nullcontext() if passes is None else passes.own_stream()
