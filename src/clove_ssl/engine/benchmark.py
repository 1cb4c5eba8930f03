"""``clove bench``: how fast each part is, and how it compares with the floor.

The floor is what nobody can avoid who trains these networks with these views:
the student's backbone forward and backward on all views and the teacher's
forward on the large ones, and nothing else. Every measurement is images per
second in the same process on the same device, so their ratios mean something.
Stages of the step are found by leaving them out.
"""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from rich.console import Console as RichConsole
from rich.table import Table
from torch import Tensor, nn

from clove_ssl import __version__
from clove_ssl.backbones.build import build_backbone
from clove_ssl.config.benching import BenchConfig
from clove_ssl.config.methods.clove import CLoVEConfig
from clove_ssl.config.pretraining import BackboneConfig, OptimizerConfig
from clove_ssl.config.views import ViewSpec
from clove_ssl.console import Console
from clove_ssl.engine.benchmark_data import (
    measure_reading,
    measure_rendering,
    measure_run,
    pictures,
)
from clove_ssl.engine.distributed import choose_device
from clove_ssl.engine.precision import Precision, choose_precision
from clove_ssl.methods.base import Method, Progress
from clove_ssl.methods.clove import CLoVE
from clove_ssl.optimizers import build_optimizer
from clove_ssl.views.batch import View, ViewBatch
from clove_ssl.views.geometry import CropGeometry

WARM_UP = 3


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


class Bench:
    """Networks, views and a clock for one device."""

    def __init__(self, config: BenchConfig) -> None:
        self.config = config
        self.device = choose_device(config.device)
        self.precision: Precision = choose_precision("auto", self.device)
        self.compiles = config.compile == "yes" or (
            config.compile == "auto" and self.device.type == "cuda"
        )
        self.measurements: list[Measurement] = []

    def measure(self, name: str, work: Callable[[], object], *, images: int) -> Measurement:
        """Time ``work`` after a warm-up; also its first call and its memory."""
        self._reset_memory()
        start = time.perf_counter()
        work()
        self.synchronize()
        first = time.perf_counter() - start
        for _ in range(WARM_UP):
            work()
        self.synchronize()
        start = time.perf_counter()
        for _ in range(self.config.steps):
            work()
        self.synchronize()
        seconds = (time.perf_counter() - start) / self.config.steps
        result = Measurement(name, images / seconds, 1e3 * seconds, self._memory(), first)
        self.measurements.append(result)
        return result

    def record(self, name: str, images_per_second: float, *, memory: float = 0.0) -> None:
        """Add what was measured elsewhere."""
        milliseconds = 1e3 * self.config.batch / images_per_second
        self.measurements.append(Measurement(name, images_per_second, milliseconds, memory))

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _reset_memory(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    def _memory(self) -> float:
        if self.device.type != "cuda":
            return 0.0
        return torch.cuda.max_memory_allocated(self.device) / 2**30

    def build(self, method: CLoVEConfig) -> CLoVE:
        """The method on the device, compiled if that is asked for."""
        torch.manual_seed(0)
        built = method.build(build_backbone(BackboneConfig(name=self.config.backbone)))
        assert isinstance(built, CLoVE)
        built = self.placed(built)
        if self.compiles:
            for network in built.networks():
                network.compile(dynamic=False)
        return built

    def placed(self, module: nn.Module) -> CLoVE:
        """A module on the device, in the layout of training."""
        on_gpu = self.device.type == "cuda"
        layout = torch.channels_last if on_gpu else torch.contiguous_format
        placed: CLoVE = module.to(memory_format=layout).to(self.device).train()  # type: ignore[assignment]
        return placed


def run_bench(config: BenchConfig) -> list[Measurement]:
    """Measure everything and show it."""
    bench, method = Bench(config), config.method
    if not isinstance(method, CLoVEConfig):
        raise TypeError("clove bench measures clove")
    if bench.device.type == "cuda":
        torch.backends.cudnn.benchmark = True
    batch = synthetic_batch(method.view_specs(), config.batch, bench)
    floor = measure_floor(bench, batch)
    measure_step(bench, method, batch)
    console = Console()
    with pictures(bench) as data:
        measure_rendering(bench, method, data)
        measure_reading(bench, method, data)
        measure_run(bench, method, data)
    RichConsole().print(_table(bench, floor))
    if config.growth:
        for line in growth_lines(bench, method):
            console.say(line)
    if config.out:
        _write(bench, config.out)
    return bench.measurements


def synthetic_batch(specs: tuple[ViewSpec, ...], images: int, bench: Bench) -> ViewBatch:
    """Random pixels with plausible geometry, on the device."""
    generator = torch.Generator().manual_seed(0)
    views = []
    for spec in specs:
        corner = 100 * torch.rand(images, 2, generator=generator)
        side = 100 + 100 * torch.rand(images, 2, generator=generator)
        geometry = CropGeometry(
            boxes=torch.cat([corner, corner + side], dim=1),
            flipped=torch.rand(images, generator=generator) < 0.5,
            flipped_vertically=torch.zeros(images, dtype=torch.bool),
            image_size=torch.tensor([320, 427]).expand(images, 2).contiguous(),
        )
        pixels = torch.randn(images, 3, spec.size, spec.size, device=bench.device)
        pixels = pixels.to(bench.precision.dtype, memory_format=torch.channels_last)
        views.append(View(pixels, geometry.to(bench.device), spec.role))
    return ViewBatch(tuple(views), torch.arange(images, device=bench.device))


def measure_floor(bench: Bench, batch: ViewBatch) -> Measurement:
    """Bare backbones on the same views."""
    torch.manual_seed(0)
    student = bench.placed(build_backbone(BackboneConfig(name=bench.config.backbone)).body)
    teacher = copy.deepcopy(student).requires_grad_(False)
    run_student, run_teacher = _plain(student, bench), _plain(teacher, bench)
    large, small = _joined(batch, "global"), _joined(batch, "local")

    def work() -> None:
        with bench.precision.autocast():
            with torch.no_grad():
                run_teacher(large)
            outputs = [run_student(images) for images in (large, small) if images is not None]
        torch.stack([output.float().mean() for output in outputs]).sum().backward()  # type: ignore[no-untyped-call]
        student.zero_grad(set_to_none=True)

    return bench.measure("floor", work, images=bench.config.batch)


def _plain(network: nn.Module, bench: Bench) -> Callable[[Tensor | None], Tensor]:
    """The convolutional part of a torchvision network, compiled like everything else."""
    children = nn.Sequential(
        *(c for n, c in network.named_children() if n not in {"avgpool", "fc"})
    )
    return torch.compile(children, dynamic=False) if bench.compiles else children


def _joined(batch: ViewBatch, role: str) -> Tensor | None:
    pixels = [view.pixels for view in batch.views if view.role == role]
    return torch.cat(pixels) if pixels else None


def measure_step(bench: Bench, method: CLoVEConfig, batch: ViewBatch) -> None:
    """The whole step, and the step with parts left out."""
    model = bench.build(method)
    optimizer = build_optimizer(OptimizerConfig(), model, peak_lr=1e-3)
    progress = Progress(0, 1000)

    def gradients() -> None:
        with bench.precision.autocast():
            output = model(batch, progress)
        output.loss.backward()

    def step() -> None:
        gradients()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        model.after_step(progress)

    def networks() -> None:
        _run_networks(bench, model, batch)
        optimizer.zero_grad(set_to_none=True)

    images = bench.config.batch
    if bench.config.trace is not None:
        write_trace(bench, step, bench.config.trace)
    bench.measure("step", step, images=images)
    bench.measure("  networks with projector", networks, images=images)
    gradients()
    bench.measure("  optimizer", optimizer.step, images=images)
    bench.measure("  teacher update", lambda: model.update_teacher(progress), images=images)


def _run_networks(bench: Bench, model: CLoVE, batch: ViewBatch) -> None:
    """Student and teacher encoders without attention, matching and loss."""
    large, small = _joined(batch, "global"), _joined(batch, "local")
    with bench.precision.autocast():
        outputs = [model.encoder(images) for images in (large, small) if images is not None]
        model.teacher(large)
    torch.stack([output.float().mean() for output in outputs]).sum().backward()  # type: ignore[no-untyped-call]


def write_trace(bench: Bench, step: Callable[[], None], path: Path) -> None:
    """Write a trace of three steps that are warm."""
    for _ in range(WARM_UP):
        step()
    with torch.profiler.profile() as profile:
        for _ in range(3):
            step()
        bench.synchronize()
    profile.export_chrome_trace(str(path))


def growth_lines(bench: Bench, method: CLoVEConfig) -> Iterator[str]:
    """Exponents of the step's time in batch, view size and number of small views."""
    bench.compiles = False
    views = method.views
    cases = {
        "batch": [(b, b, views) for b in (32, 64, 128)],
        "large view size": [(64, s, replace(views, global_size=s)) for s in (160, 224, 288)],
        "small views": [(64, n, replace(views, local_count=n)) for n in (2, 4, 8)],
    }
    for name, points in cases.items():
        times = []
        for images, value, changed in points:
            varied = replace(method, views=changed)
            batch = synthetic_batch(varied.view_specs(), images, bench)
            model = bench.build(varied)
            times.append((value, _forward_backward_time(bench, model, batch)))
        yield f"time grows with {name} to the power {_slope(times):.2f}: " + ", ".join(
            f"{value}: {1e3 * seconds:.0f} ms" for value, seconds in times
        )


def _forward_backward_time(bench: Bench, model: Method, batch: ViewBatch) -> float:
    def work() -> None:
        with bench.precision.autocast():
            output = model(batch, Progress(0, 10))
        output.loss.backward()
        model.zero_grad(set_to_none=True)

    result = bench.measure("growth", work, images=len(batch.index))
    bench.measurements.pop()
    return result.milliseconds / 1e3


def _slope(points: list[tuple[int, float]]) -> float:
    """Least-squares slope in logarithms."""
    xs = [math.log(x) for x, _ in points]
    ys = [math.log(y) for _, y in points]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread


def _table(bench: Bench, floor: Measurement) -> Table:
    table = Table("part", "images/s", "of the floor", "ms per batch", "GiB", "first call")
    table.title = f"{bench.config.backbone}, batch {bench.config.batch}, {bench.device.type}"
    for m in bench.measurements:
        table.add_row(
            m.name,
            f"{m.images_per_second:,.0f}",
            f"{m.images_per_second / floor.images_per_second:.2f}",
            f"{m.milliseconds:.1f}",
            f"{m.memory_gib:.1f}",
            f"{m.first_call_seconds:.1f} s",
        )
    return table


def _write(bench: Bench, path: Path) -> None:
    on_gpu = bench.device.type == "cuda"
    where = {
        "backbone": bench.config.backbone,
        "batch": bench.config.batch,
        "device": torch.cuda.get_device_name(bench.device) if on_gpu else "cpu",
        "torch": torch.__version__,
        "clove_ssl": __version__,
    }
    with path.open("a") as file:
        for measurement in bench.measurements:
            file.write(json.dumps({**asdict(measurement), **where}) + "\n")
