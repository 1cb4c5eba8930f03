"""Time of rendering all views of a batch of decoded images on the device, stage by stage.

Run:  python -m benchmarks.bench_render [--images 256] [--height 320] [--width 427] [--rounds 20]
Prints one JSON line per case: the whole call from a list of images and from packed
ones, every stage of the kernels for every group of views, the plain torch version,
and decoding by nvJPEG. Times are milliseconds per batch, medians over the rounds;
stages are measured with device events, and ``host_ms`` is how long the caller was busy.
Without a GPU only the torch version runs, on fewer images.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor

from clove_ssl.config.views import ViewsConfig
from clove_ssl.data.decode import decode, find_batch_decoder
from clove_ssl.views.draw.crops import UNIFORMS_PER_VIEW
from clove_ssl.views.draw.parameters import ViewParameters, draw_views
from clove_ssl.views.render.gpu import Backend, has_kernels, render_batch
from clove_ssl.views.render.groups import group_views
from clove_ssl.views.render.packing import PackedImages

SPECS = ViewsConfig().specs()
Times = dict[str, dict[str, float]]  # milliseconds, by case


def made_up_file(seed: int, *, height: int, width: int) -> bytes:
    """A JPEG file with soft shapes and some grain."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    soft = coarse.resize((width, height), Image.Resampling.BICUBIC)
    grain = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
    photo = Image.blend(soft, grain.filter(ImageFilter.GaussianBlur(1)), 0.15)
    file = io.BytesIO()
    photo.save(file, "JPEG", quality=90)
    return file.getvalue()


def made_up_files(count: int, *, height: int, width: int) -> list[bytes]:
    """JPEG files around this size, half of them on their side; 16 different ones."""
    shapes = np.random.default_rng(0).normal(1, 0.1, (16, 2)).clip(0.7, 1.3)
    sides = [(round(height * a), round(width * b)) for a, b in shapes]
    some = [
        made_up_file(seed, height=tall if seed % 2 else wide, width=wide if seed % 2 else tall)
        for seed, (tall, wide) in enumerate(sides)
    ]
    return [some[number % len(some)] for number in range(count)]


def draw(images: list[Tensor], seed: int) -> ViewParameters:
    """Fresh parameters of all views."""
    uniforms = np.random.default_rng(seed).random((len(images), len(SPECS), UNIFORMS_PER_VIEW))
    heights, widths = np.array([image.shape[1:] for image in images]).T
    return draw_views(uniforms, heights, widths, SPECS)


class Clock:
    """Device time and the caller's time of pieces of work, medians per name."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._work = torch.ones(8192, 8192, device=device) if self._on_gpu else None
        self._pending: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self._host: dict[str, list[float]] = {}

    def occupy(self) -> None:
        """Keep the device busy for some milliseconds, so that it does not wait for the caller."""
        if self._work is not None:
            torch.mm(self._work, self._work)

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Time what happens inside; nobody waits for the device."""
        start = time.perf_counter()
        if self._on_gpu:
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            yield
            after.record()
            self._pending.append((name, before, after))
        else:
            yield
        self._host.setdefault(name, []).append(1e3 * (time.perf_counter() - start))

    def medians(self) -> Times:
        """Milliseconds per name; waits for the device."""
        if self._on_gpu:
            torch.cuda.synchronize()
        device: dict[str, list[float]] = {}
        for name, before, after in self._pending:
            device.setdefault(name, []).append(before.elapsed_time(after))
        return {
            name: {
                "ms": round(statistics.median(device.get(name, host)), 3),
                "host_ms": round(statistics.median(host), 3),
            }
            for name, host in self._host.items()
        }


def bench_whole(images: list[Tensor], rounds: int, *, backend: Backend) -> Times:
    """The calls a training loop makes."""
    packed = PackedImages.from_images(images)
    clock = Clock(images[0].device)
    for number in range(-2, rounds):
        if number == 0:
            clock = Clock(images[0].device)  # the first rounds compile and fill the allocator
        parameters = draw(images, number + 2)
        clock.occupy()
        with clock.time("pack"):
            PackedImages.from_images(images)
        for name, given in (("from list", images), ("from packed", packed)):
            clock.occupy()
            with clock.time(f"{backend} {name}"):
                render_batch(given, parameters, SPECS, dtype=torch.bfloat16, backend=backend)
    return clock.medians()


def bench_stages(images: list[Tensor], rounds: int) -> Times:
    """Every kernel by itself, for every group of views."""
    from clove_ssl.views.render.triton.launches import GroupRendering, plan

    packed = PackedImages.from_images(images)
    clock = Clock(images[0].device)
    for number in range(rounds):
        groups = group_views(draw(images, number), SPECS)
        clock.occupy()
        with clock.time("plan"):
            renderings = plan(packed, groups, dtype=torch.bfloat16, channels_last=True)
        for group, rendering in zip(groups, renderings, strict=True):
            for stage in GroupRendering.STAGES:
                with clock.time(f"{len(group.views)}x{group.size} {stage}"):
                    getattr(rendering, stage)()
    return clock.medians()


def bench_decoding(files: list[bytes], device: torch.device, rounds: int) -> Times:
    """nvJPEG on the whole batch; it waits for the device itself."""
    decode_batch = find_batch_decoder()
    if decode_batch is None:
        return {}
    clock = Clock(device)
    tensors = [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in files]
    decode_batch(tensors, device)
    for _ in range(rounds):
        with clock.time("nvJPEG"):
            decode_batch(tensors, device)
    return clock.medians()


def main() -> None:
    """Run all cases that this machine can."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int)
    parser.add_argument("--height", type=int, default=320)
    parser.add_argument("--width", type=int, default=427)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    count = options.images or (256 if device.type == "cuda" else 8)
    files = made_up_files(count, height=options.height, width=options.width)
    images = [decode(data).contiguous().to(device) for data in files]
    report = partial(_print, images=count, device=_name(device), torch=torch.__version__)
    if has_kernels(device):
        report(bench_whole(images, options.rounds, backend="triton"))
        report(bench_stages(images, options.rounds))
    report(bench_whole(images, min(options.rounds, 3), backend="torch"))
    if device.type == "cuda":
        report(bench_decoding(files, device, min(options.rounds, 5)))


def _print(times: Times, **about: object) -> None:
    for case, milliseconds in times.items():
        print(json.dumps({"case": case, **milliseconds, **about}), flush=True)


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


if __name__ == "__main__":
    main()
