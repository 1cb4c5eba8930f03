"""The parts of ``clove bench`` that need no images: the floor, the step, its growth."""

from __future__ import annotations

import copy
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from clove_ssl.backbones.build import Backbone
from clove_ssl.bench.clock import FLOOR, WARM_UP, Measurement
from clove_ssl.bench.command import Bench
from clove_ssl.config.bases import MethodConfig
from clove_ssl.config.pretraining import OptimizerConfig
from clove_ssl.config.views import ViewsConfig
from clove_ssl.losses import clove_loss
from clove_ssl.methods.base import Method, Progress
from clove_ssl.methods.clove.config import CLoVEConfig
from clove_ssl.methods.compiled import EncoderInputs
from clove_ssl.methods.teacher_student import BackboneEncoder, TeacherStudentMethod
from clove_ssl.optimizers import build_optimizer
from clove_ssl.pretraining.compile.ahead import compile_calls
from clove_ssl.pretraining.compile.calls import PieceCall
from clove_ssl.pretraining.compile.helpers import Surroundings
from clove_ssl.pretraining.compile.method import compile_pieces, cut
from clove_ssl.training.observer import Moment
from clove_ssl.views.batch import View, ViewBatch, joined_pixels

PROGRESS = Progress(0, 1000)


def measure_floor(
    bench: Bench, batch: ViewBatch, *, taught: bool, joined: bool = True, name: str = FLOOR
) -> Measurement:
    """Bare backbones on the same views, those of one size joined or each on its own.

    Where a method is ``taught`` a second network, the teacher, sees the large ones.
    """
    torch.manual_seed(0)
    passes = _passes_of(batch, joined=joined)
    large = [images for images in passes if images.shape[-1] == passes[0].shape[-1]]
    inputs = EncoderInputs(passes, large if taught else [])
    student = bench.placed(_LastMap(bench.backbone()))
    teacher = copy.deepcopy(student).requires_grad_(False)
    prepared = _compile_floor(bench, student, teacher, inputs) if bench.compiles else 0.0

    def work() -> None:
        run_networks(bench, student, teacher, inputs)
        student.zero_grad(set_to_none=True)

    return bench.measure(name, work, prepared=prepared)


def _compile_floor(
    bench: Bench, student: nn.Module, teacher: nn.Module, inputs: EncoderInputs
) -> float:
    """Compile whole networks, each call of them by another process, or pieces; the seconds."""
    if bench.config.floor == "parts":
        compile_pieces(cut([student, teacher]))
        return 0.0
    start = time.perf_counter()
    different = {images.shape: images for images in inputs.student}.values()
    calls = [PieceCall.of(student, images, learns=True) for images in different]
    calls += [PieceCall.of(teacher, images, learns=False) for images in inputs.teacher[:1]]
    with bench.working("compilation of the floor"):
        compile_calls(calls, Surroundings(bench.precision, bench.device))
    student.compile(dynamic=False)
    teacher.compile(dynamic=False)
    return time.perf_counter() - start


def run_networks(
    bench: Bench, student: nn.Module, teacher: nn.Module, inputs: EncoderInputs
) -> None:
    """Student forward and backward, teacher forward."""
    with bench.precision.autocast():
        with torch.no_grad():
            for images in inputs.teacher:
                teacher(images)
        outputs = [student(images) for images in inputs.student]
    torch.stack([_one_number(output) for output in outputs]).sum().backward()  # type: ignore[no-untyped-call]


def _one_number(output: Tensor | Sequence[Tensor | None]) -> Tensor:
    """A number in which all that a network hands out, one tensor or several, has a part."""
    tensors = [output] if isinstance(output, Tensor) else output
    return torch.stack([each.float().mean() for each in tensors if each is not None]).sum()


class _LastMap(nn.Module):
    """A backbone that hands out its last map alone, as it does in a method."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, D, h, w)."""
        return self.backbone.features(images)


def _passes_of(batch: ViewBatch, *, joined: bool) -> list[Tensor]:
    """What goes through a network at once, the large views first: all of a size, or each view."""
    sizes: dict[int, list[View]] = defaultdict(list)
    for view in batch.views:
        sizes[view.pixels.shape[-1]].append(view)
    groups = [sizes[size] for size in sorted(sizes, reverse=True)]
    if joined:
        return [joined_pixels(views) for views in groups]
    return [view.pixels for views in groups for view in views]


def measure_step(bench: Bench, model: Method, batch: ViewBatch) -> Measurement:
    """The whole step, and the shares of its stages."""
    prepared = bench.compile_ahead(model, batch)
    optimizer = build_optimizer(OptimizerConfig(), model, peak_lr=1e-3)
    stages = Stages(bench)

    def step() -> None:
        stages.begin()
        with bench.precision.autocast():
            output = model(batch, PROGRESS)
        stages.end("forward")
        output.loss.backward()
        stages.end("backward")
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        model.after_step(PROGRESS)
        stages.end("optimizer")

    whole = bench.measure("step", step, prepared=prepared)
    for name, milliseconds in stages.milliseconds().items():
        bench.record_share(f"  {name}", milliseconds, step=whole)
    if isinstance(model, TeacherStudentMethod):
        _measure_parts(bench, model, batch, whole)
    if bench.config.trace is not None:
        write_trace(bench, step, bench.config.trace)
    return whole


class Stages:
    """Where the device is when, step by step."""

    def __init__(self, bench: Bench) -> None:
        self._device = bench.device
        self._synchronize = bench.synchronize
        self._steps: list[list[tuple[str, Moment]]] = []

    def begin(self) -> None:
        """A step begins."""
        self._steps.append([])
        self.end("begin")

    def end(self, stage: str) -> None:
        """A stage of the step ends here."""
        self._steps[-1].append((stage, Moment(self._device)))

    def milliseconds(self) -> dict[str, float]:
        """Median time of each stage."""
        self._synchronize()
        times: dict[str, list[float]] = defaultdict(list)
        for marks in self._steps:
            for (_, before), (stage, after) in pairwise(marks):
                times[stage].append(before.milliseconds_to(after))
        return {stage: median(values) for stage, values in times.items()}


def _measure_parts(
    bench: Bench, model: TeacherStudentMethod[BackboneEncoder], batch: ViewBatch, step: Measurement
) -> None:
    """What forward and backward consist of: networks, teacher, and the rest."""
    student, teacher = model.encoders()
    inputs = model.encoder_inputs(batch)

    def networks() -> None:
        run_networks(bench, student, teacher, inputs)
        model.zero_grad(set_to_none=True)

    def teacher_forward() -> None:
        with torch.no_grad(), bench.precision.autocast():
            for images in inputs.teacher:
                teacher(images)

    gradients = partial(_forward_and_backward, bench, model, batch)
    bench.measure("  networks with heads", networks)
    update = bench.device_milliseconds("teacher update", lambda: model.update_teacher(PROGRESS))
    forward = bench.device_milliseconds("teacher forward", teacher_forward)
    bench.record_share("  teacher forward", forward, step=step)
    bench.record_share("  teacher update", update, step=step)
    bench.measure("  forward and backward", gradients)
    rest = max(_difference(bench, gradients, networks) - update, 0.0)
    bench.record_share("  loss, matching, predictor", rest, step=step)


def _forward_and_backward(bench: Bench, model: Method, batch: ViewBatch) -> None:
    with bench.precision.autocast():
        output = model(batch, PROGRESS)
    output.loss.backward()
    model.zero_grad(set_to_none=True)


def _difference(bench: Bench, whole: Callable[[], None], part: Callable[[], None]) -> float:
    """How many milliseconds longer one takes; they take turns, so what slows one slows both."""
    turns = Stages(bench)
    with bench.working("loss, matching, predictor", calls=bench.config.steps) as shown:
        for _ in range(bench.config.steps):
            turns.begin()
            whole()
            turns.end("whole")
            part()
            turns.end("part")
            shown.done()
    times = turns.milliseconds()
    return times["whole"] - times["part"]


def write_trace(bench: Bench, step: Callable[[], None], path: Path) -> None:
    """Write a trace of three steps that are warm, and their longest kernels beside it."""
    for _ in range(WARM_UP):
        step()
    with torch.profiler.profile() as profile:
        for _ in range(3):
            step()
        bench.synchronize()
    profile.export_chrome_trace(str(path))
    by_time = "self_device_time_total" if bench.device.type == "cuda" else "self_cpu_time_total"
    kernels = profile.key_averages().table(sort_by=by_time, row_limit=60, max_name_column_width=80)
    path.with_suffix(".txt").write_text(kernels)


Points = list[tuple[int, float]]


def measure_growth(bench: Bench, method: MethodConfig) -> None:
    """Exponents of the step's time in batch, view sizes, small views and grid, uncompiled.

    Measured near the batch that was asked for: a GPU with little to do waits for the host, and
    its time does not grow at all.
    """
    bench.compiles = False
    for name, points in _cases(bench, method):
        bench.record_growth(name, slope(points), dict(points))


def _cases(bench: Bench, method: MethodConfig) -> Iterator[tuple[str, Points]]:
    small = max(2, bench.config.batch // 4)
    sizes = (small, 2 * small, 4 * small)
    yield "the batch", [(size, _step_time(bench, method, size)) for size in sizes]
    if not isinstance(method, CLoVEConfig):
        return
    views = method.views

    def time(changed: ViewsConfig) -> float:
        return _step_time(bench, replace(method, views=changed), sizes[-1])

    sides = (views.global_size // 2, 3 * views.global_size // 4, views.global_size)
    yield (
        "the side of large views",
        [(side, time(replace(views, global_size=side))) for side in sides],
    )
    most = max(3, views.local_count)
    yield (
        "the number of small views",
        [
            (count, time(replace(views, local_count=count)))
            for count in (most // 3, 2 * most // 3, most)
        ],
    )
    grids = (14, 28, 42)
    yield "the side of the grid (loss alone)", [(side, _loss_time(bench, side)) for side in grids]


def _step_time(bench: Bench, method: MethodConfig, images: int) -> float:
    batch = bench.batch(method, images)
    work = partial(_forward_and_backward, bench, bench.build(method), batch)
    return bench.device_milliseconds(f"steps of {images} images", work, repeats=5)


def _loss_time(bench: Bench, side: int) -> float:
    shape = (16, 256, side, side)
    context = torch.randn(shape, device=bench.device, requires_grad=True)
    target = torch.randn(shape, device=bench.device)
    matches = torch.rand(len(target), side**2, side**2, device=bench.device) < 0.05

    def work() -> None:
        clove_loss(context, target, matches).backward()  # type: ignore[no-untyped-call]
        context.grad = None

    return bench.device_milliseconds(f"the loss of {side} x {side} cells", work, repeats=5)


def slope(points: Points) -> float:
    """Least-squares slope in logarithms."""
    xs = [math.log(x) for x, _ in points]
    ys = [math.log(y) for _, y in points]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
