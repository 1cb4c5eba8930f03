"""Views per second of one CPU thread, against the plain Pillow pipeline.

Run:  python -m benchmarks.bench_views [--photo FILE] [--images 32] [--rounds 7]
Prints one JSON line per case. Both pipelines render the same parameters in the
same process, in turns. Times are CPU time of the thread, and of every image the
fastest round counts: a busy machine would otherwise slow down the longer work
more often than the shorter one.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.bench_render import made_up_file
from clove_ssl.config.views import ViewsConfig, ViewSpec
from clove_ssl.data.decode import decode
from clove_ssl.views.draw.crops import UNIFORMS_PER_VIEW
from clove_ssl.views.draw.parameters import ViewParameters, draw_views
from clove_ssl.views.render.cpu import render_views

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from references import pil_views  # noqa: E402

CASES: dict[str, tuple[ViewSpec, ...]] = {
    "2x224+6x96": ViewsConfig().specs(),
    "2x224": ViewsConfig(local_count=0).specs(),
}


def fastest(rounds: int, works: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Milliseconds of the fastest round of each work; works take turns."""
    best = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            start = time.thread_time()
            work()
            best[name] = min(best[name], 1e3 * (time.thread_time() - start))
    return best


def pillow(source: Image.Image, parameters: ViewParameters, specs: tuple[ViewSpec, ...]) -> None:
    """All views of an image by way of Pillow, as tensors."""
    for view, spec in enumerate(specs):
        pil_views.to_tensor(pil_views.render_view(source, parameters, view, spec))


def bench(
    file: bytes, specs: tuple[ViewSpec, ...], *, images: int, rounds: int
) -> dict[str, float]:
    """Mean milliseconds per image of both pipelines, with and without decoding."""
    photo = Image.open(io.BytesIO(file)).convert("RGB")
    image = decode(file)
    total: dict[str, float] = {}
    for uniforms in np.random.default_rng(1).random((images, len(specs), UNIFORMS_PER_VIEW)):
        drawn = draw_views(uniforms, photo.height, photo.width, specs)
        works: dict[str, Callable[[], object]] = {
            "pillow_ms": partial(pillow, photo, drawn, specs),
            "clove_ms": partial(render_views, image, drawn, specs),
            "pillow_decode_ms": lambda: Image.open(io.BytesIO(file)).convert("RGB"),
            "clove_decode_ms": lambda: decode(file),
        }
        for name, milliseconds in fastest(rounds, works).items():
            total[name] = total.get(name, 0.0) + milliseconds / images
    return total


def speedups(times: dict[str, float]) -> dict[str, float]:
    """How many times faster than Pillow, with and without decoding."""
    pillow_ms = times["pillow_ms"] + times["pillow_decode_ms"]
    clove_ms = times["clove_ms"] + times["clove_decode_ms"]
    return {
        "speedup": times["pillow_ms"] / times["clove_ms"],
        "speedup_with_decode": pillow_ms / clove_ms,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--photo", type=Path)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    jpeg = args.photo.read_bytes() if args.photo else made_up_file(0, height=375, width=500)
    for case, case_specs in CASES.items():
        times = bench(jpeg, case_specs, images=args.images, rounds=args.rounds)
        line = {name: round(value, 3) for name, value in (times | speedups(times)).items()}
        print(json.dumps({"case": case, **line, "torch": torch.__version__}))
