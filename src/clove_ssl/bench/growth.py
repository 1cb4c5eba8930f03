"""How the cost of a step grows, as exponents fitted to a few measurements."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch

from clove_ssl.bench.command import Bench
from clove_ssl.bench.step import PROGRESS
from clove_ssl.config.bases import MethodConfig
from clove_ssl.config.views import ViewsConfig
from clove_ssl.losses import clove_loss
from clove_ssl.methods.clove.config import CLoVEConfig

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
    model = bench.build(method)

    def work() -> None:
        with bench.precision.autocast():
            output = model(batch, PROGRESS)
        output.loss.backward()
        model.zero_grad(set_to_none=True)

    return bench.device_milliseconds(work, repeats=5)


def _loss_time(bench: Bench, side: int, images: int = 16, channels: int = 256) -> float:
    shape = (images, channels, side, side)
    context = torch.randn(shape, device=bench.device, requires_grad=True)
    target = torch.randn(shape, device=bench.device)
    matches = torch.rand(images, side**2, side**2, device=bench.device) < 0.05

    def work() -> None:
        clove_loss(context, target, matches).backward()  # type: ignore[no-untyped-call]
        context.grad = None

    return bench.device_milliseconds(work, repeats=5)


def slope(points: Points) -> float:
    """Least-squares slope in logarithms."""
    xs = [math.log(x) for x, _ in points]
    ys = [math.log(y) for _, y in points]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
