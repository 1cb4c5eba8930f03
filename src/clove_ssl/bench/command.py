"""``clove bench``: how fast each part is, and how it compares with the floor.

The floor is what nobody can avoid who trains these networks with these views:
the student's backbone forward and backward on all views and the teacher's
forward on the large ones, and nothing else. Every measurement is made in the same
process on the same device, so their ratios mean something.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import TypeVar

import torch
from rich.console import Console as RichConsole
from rich.table import Table
from torch import nn

from clove_ssl import __version__
from clove_ssl.backbones.build import Backbone, build_backbone
from clove_ssl.bench.config import BenchConfig
from clove_ssl.config.bases import MethodConfig
from clove_ssl.config.pretraining import DataConfig
from clove_ssl.console import Console, Work
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

FLOOR = "floor"
WARM_UP = 3
_HEAD_START = 200_000_000  # clock cycles, about a tenth of a second


@dataclass(frozen=True)
class Measurement:
    """One line of the result."""

    name: str
    images_per_second: float
    milliseconds: float
    """Per batch."""
    memory_gib: float = 0.0
    first_call_seconds: float = 0.0
    """With compilation, if there was any."""
    share: float | None = None
    """Of the step's time, for a part of it."""


class Bench:
    """A clock for one device, and networks placed on it as in training."""

    def __init__(self, config: BenchConfig) -> None:
        self.config = config
        self.device = choose_device(config.device)
        self.precision: Precision = choose_precision("auto", self.device)
        self.precision.prepare()
        # As a run does: code that was compiled with other settings is not found.
        start_repeatably(0, self.device, deterministic=False)
        self.compiles = config.compile == "always" or (
            config.compile == "auto" and self.device.type == "cuda"
        )
        self.measurements: list[Measurement] = []
        self._console = Console()

    def measure(
        self, name: str, work: Callable[[], object], *, images: int, prepared: float = 0.0
    ) -> Measurement:
        """Time ``work`` after a warm-up; also its memory and its first call.

        The first call includes the seconds that it was ``prepared``.
        """
        self._reset_memory()
        with self.working(name, calls=1 + WARM_UP + self.config.steps) as shown:
            first = prepared + self._seconds(work, 1, shown)
            self._seconds(work, WARM_UP, shown)
            gc.collect()  # or Python may do so while time is taken, half a second after compilation
            seconds = self._seconds(work, self.config.steps, shown) / self.config.steps
        result = Measurement(name, images / seconds, 1e3 * seconds, self._memory(), first)
        self._keep(result)
        return result

    def seconds_per_call(self, name: str, work: Callable[[], object], *, warm_up: int) -> float:
        """The time of a call, of as many as the config says, behind some that do not count."""
        with self.working(name, calls=warm_up + self.config.steps) as shown:
            self._seconds(work, warm_up, shown)
            return self._seconds(work, self.config.steps, shown) / self.config.steps

    def _seconds(self, work: Callable[[], object], calls: int, shown: Work) -> float:
        """The time of some calls, until the device is done with them."""
        start = time.perf_counter()
        for _ in range(calls):
            work()
            shown.done()
        self.synchronize()
        return time.perf_counter() - start

    def working(self, name: str, *, calls: int | None = None) -> AbstractContextManager[Work]:
        """Show what is being measured, and how many of its calls are made."""
        return self._console.working(name.strip(), total=calls)

    def device_milliseconds(
        self,
        name: str,
        work: Callable[[], object],
        *,
        repeats: int = 10,
        stream: torch.cuda.Stream | None = None,
    ) -> float:
        """Time ``work`` keeps the device busy, on its stream, without waits for the host."""
        work()
        if self.device.type != "cuda":
            with self.working(name, calls=repeats) as shown:
                return 1e3 * self._seconds(work, repeats, shown) / repeats
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            torch.cuda._sleep(_HEAD_START)  # type: ignore[no-untyped-call]  # the host queues meanwhile
            begin.record()
            for _ in range(repeats):
                work()
            end.record()
        self.synchronize()
        return float(begin.elapsed_time(end)) / repeats

    def record(
        self, name: str, images_per_second: float, *, memory: float = 0.0, first: float = 0.0
    ) -> None:
        """Add what was measured elsewhere."""
        milliseconds = 1e3 * self.config.batch / images_per_second
        self._keep(Measurement(name, images_per_second, milliseconds, memory, first))

    def record_share(self, name: str, milliseconds: float, *, step: Measurement) -> None:
        """Add a part of the step by the time it takes."""
        speed = 1e3 * self.config.batch / milliseconds if milliseconds else 0.0
        share = milliseconds / step.milliseconds
        self._keep(Measurement(name, speed, milliseconds, share=share))

    def record_growth(self, name: str, exponent: float, points: Mapping[int, float]) -> None:
        """Add how a time grows with something, from milliseconds at some values of it."""
        times = ", ".join(f"{value}: {time:.1f} ms" for value, time in points.items())
        self._console.say(f"time grows with {name} to the power {exponent:.2f}: {times}")
        self._write({"growth": name, "exponent": exponent, "milliseconds": points})

    def say(self, text: str) -> None:
        """Tell why something is not measured."""
        self._console.say(text)

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

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

    def _keep(self, measurement: Measurement) -> None:
        """Remember, say and write down at once, since what follows may take long or fail."""
        self.measurements.append(measurement)
        speed, share = measurement.images_per_second, measurement.share
        worth = f"{speed:,.0f} images/s" if share is None else f"{100 * share:.1f} % of the step"
        self._console.say(f"{measurement.name}: {measurement.milliseconds:.1f} ms, {worth}")
        self._write(asdict(measurement))

    def _write(self, measured: Mapping[str, object]) -> None:
        """Append a line to the file of results, if there is one."""
        if self.config.out is None:
            return
        on_gpu = self.device.type == "cuda"
        where = {
            "method": self.config.method.name,
            "backbone": self.config.backbone.name,
            "batch": self.config.batch,
            "device": torch.cuda.get_device_name(self.device) if on_gpu else "cpu",
            "torch": torch.__version__,
            "clove_ssl": __version__,
        }
        with self.config.out.open("a") as file:
            file.write(json.dumps({**measured, **where}) + "\n")

    def _reset_memory(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    def _memory(self) -> float:
        if self.device.type != "cuda":
            return 0.0
        return torch.cuda.max_memory_allocated(self.device) / 2**30


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
    RichConsole().print(_table(bench))
    if "growth" in config.parts:
        measure_growth(bench, method)
    return bench.measurements


def _check_places(config: BenchConfig) -> None:
    """Find out before minutes of measuring whether they can be read from and written down."""
    if config.data is not None:
        open_source(DataConfig(source=config.data))
    for path in filter(None, (config.out, config.trace)):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("a").close()
        except OSError as error:
            raise UserError(
                f"{path} cannot be written: {error.strerror}. Name a file in a folder that you may "
                "write to."
            ) from None


def _table(bench: Bench) -> Table:
    """All measurements, compared with the floor where it was measured."""
    floor = next((one for one in bench.measurements if one.name == FLOOR), None)
    columns = ("part", "images/s", "of the floor", "ms per batch", "of the step", "GiB", "first")
    table = Table(*columns)
    table.title = (
        f"{bench.config.method.name}, {bench.config.backbone.name}, batch {bench.config.batch}, "
        f"{bench.device.type}"
    )
    for one in bench.measurements:
        is_whole = one.share is None
        table.add_row(
            one.name,
            f"{one.images_per_second:,.0f}" if is_whole else "",
            f"{one.images_per_second / floor.images_per_second:.2f}" if is_whole and floor else "",
            f"{one.milliseconds:.1f}",
            "" if one.share is None else f"{100 * one.share:.1f} %",
            f"{one.memory_gib:.1f}" if one.memory_gib else "",
            f"{one.first_call_seconds:.1f} s" if one.first_call_seconds else "",
        )
    return table
