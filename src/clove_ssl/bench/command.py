"""``clove bench``: how fast each part of pre-training is, and how it compares with the floor.

The floor is the student's backbone forward and backward on all views and the teacher's forward on
the large ones, and nothing else.
"""

from __future__ import annotations

import time
from typing import TypeVar

import torch
from torch import nn

from clove_ssl.backbones.build import Backbone, build_backbone
from clove_ssl.bench.clock import Clock, Measurement, check_writable
from clove_ssl.bench.config import BenchConfig
from clove_ssl.config.bases import MethodConfig
from clove_ssl.config.pretraining import DataConfig
from clove_ssl.data.sources import open_source
from clove_ssl.errors import UserError
from clove_ssl.methods.base import Method
from clove_ssl.pretraining.compile.ahead import compile_ahead
from clove_ssl.pretraining.compile.method import compile_method
from clove_ssl.pretraining.synthetic import synthetic_batch
from clove_ssl.training.numerics import Precision, choose_precision, start_repeatably
from clove_ssl.training.processes import choose_device, placed
from clove_ssl.views.batch import ViewBatch

M = TypeVar("M", bound=nn.Module)


class Bench(Clock):
    """A clock for one device, and networks placed on it as in training."""

    def __init__(self, config: BenchConfig) -> None:
        about = {"method": config.method.name, "backbone": config.backbone.name}
        super().__init__(
            choose_device(config.device),
            batch=config.batch,
            steps=config.steps,
            about=about,
            out=config.out,
        )
        self.config = config
        self.precision: Precision = choose_precision("auto", self.device)
        self.precision.prepare()
        # As a run does: code that was compiled with other settings is not found.
        start_repeatably(0, self.device, deterministic=False)
        self.compiles = config.compile == "always" or (
            config.compile == "auto" and self.device.type == "cuda"
        )

    def build(self, method: MethodConfig, *, compiles: bool | None = None) -> Method:
        """The method on the device, compiled if that is asked for here or in the config."""
        torch.manual_seed(0)
        built: Method = self.placed(method.build(self.backbone()))
        if self.compiles if compiles is None else compiles:
            compile_method(built, activation_memory=self.config.activation_memory)
        return built

    def compile_ahead(self, method: Method, batch: ViewBatch) -> float:
        """Seconds to compile what ``method`` needs before its first call, as runs do."""
        if not self.compiles:
            return 0.0
        start = time.perf_counter()
        kept = self.config.activation_memory
        with self.working("compilation"):
            compile_ahead(method, batch, self.precision, activation_memory=kept)
        return time.perf_counter() - start

    def backbone(self) -> Backbone:
        """The backbone of the config, with random weights."""
        return build_backbone(self.config.backbone)

    def batch(self, method: MethodConfig, images: int) -> ViewBatch:
        """Views of random pixels for ``method``."""
        return synthetic_batch(
            method.view_specs(), images, device=self.device, dtype=self.precision.dtype
        )

    def placed(self, module: M) -> M:
        """A module on the device, in the layout of training."""
        return placed(module, self.device).train()


def run_bench(config: BenchConfig) -> list[Measurement]:
    """Measure everything and show it."""
    from clove_ssl.bench.data import (
        measure_feed,
        measure_reading,
        measure_rendering,
        pictures,
        with_classes,
    )
    from clove_ssl.bench.run import check_cores, measure_runs
    from clove_ssl.bench.step import measure_floor, measure_growth, measure_step
    from clove_ssl.bench.ways import measure_ways

    if not config.method.trains:
        raise UserError(
            f"{config.method.name} trains nothing, so there is no speed to measure. Name another "
            "recipe, such as: clove bench clove-demo"
        )
    _check_places(config)
    check_cores(config.cores)
    bench = Bench(config)
    with pictures(bench) as data:
        method = with_classes(config.method, data)
        if "run" in config.parts:
            measure_runs(bench, method, data)
        if "step" in config.parts:
            batch = bench.batch(method, config.batch)
            measure_floor(bench, batch, taught=method.has_teacher)
            measure_step(bench, bench.build(method), batch)
            measure_ways(bench, method, batch)
        if "data" in config.parts:
            measure_rendering(bench, method, data)
            measure_reading(bench, method, data)
            measure_feed(bench, method, data)
    bench.show()
    if "growth" in config.parts:
        measure_growth(bench, method)
    return bench.measurements


def _check_places(config: BenchConfig) -> None:
    """Find out before minutes of measuring whether they can be read from and written down."""
    if config.data is not None:
        open_source(DataConfig(source=config.data))
    check_writable(config.out, config.trace)
