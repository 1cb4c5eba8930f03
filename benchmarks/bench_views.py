"""Views per second of one CPU thread, against the plain Pillow pipeline.

Run:  python -m benchmarks.bench_views [--photo FILE] [--images 32] [--rounds 7]
Prints one JSON line per case. Both pipelines render the same parameters in the
same process, in turns; a case counts its fastest round, which other programs
on the machine disturb least.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageFilter

from clove_ssl.config.views import ViewsConfig, ViewSpec
from clove_ssl.data.decode import decode
from clove_ssl.views.parameters import UNIFORMS_PER_VIEW, ViewParameters, draw_views
from clove_ssl.views.render_cpu import render_views

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from references import pil_views  # noqa: E402

MAX_PIXELS = 100_000_000
CASES: dict[str, tuple[ViewSpec, ...]] = {
    "2x224+6x96": ViewsConfig().specs(),
    "2x224": ViewsConfig(local_count=0).specs(),
}


def made_up_photo(width: int = 500, height: int = 375) -> bytes:
    """A JPEG file with soft shapes and some grain."""
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    soft = coarse.resize((width, height), Image.Resampling.BICUBIC)
    grain = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
    photo = Image.blend(soft, grain.filter(ImageFilter.GaussianBlur(1)), 0.15)
    file = io.BytesIO()
    photo.save(file, "JPEG", quality=90)
    return file.getvalue()


def fastest(rounds: int, *steps: Callable[[], object]) -> list[float]:
    """Seconds of the fastest round of each step; steps take turns."""
    best = [float("inf")] * len(steps)
    for _ in range(rounds):
        for number, step in enumerate(steps):
            start = time.perf_counter()
            step()
            best[number] = min(best[number], time.perf_counter() - start)
    return best


def bench(
    file: bytes, specs: tuple[ViewSpec, ...], *, images: int, rounds: int
) -> dict[str, float]:
    """Milliseconds per image of both pipelines, with and without decoding."""
    photo = Image.open(io.BytesIO(file)).convert("RGB")
    image = decode(file, max_pixels=MAX_PIXELS)
    uniforms = np.random.default_rng(1).random((images, len(specs), UNIFORMS_PER_VIEW))
    sizes = np.full(images, photo.height), np.full(images, photo.width)
    drawn = draw_views(uniforms, *sizes, specs)
    each = [drawn.image(number) for number in range(images)]

    def pillow(source: Image.Image, parameters: ViewParameters) -> None:
        for view, spec in enumerate(specs):
            pil_views.to_tensor(pil_views.render_view(source, parameters, view, spec))

    seconds = fastest(
        rounds,
        lambda: [pillow(photo, one) for one in each],
        lambda: [render_views(image, one, specs) for one in each],
        lambda: [pillow(Image.open(io.BytesIO(file)).convert("RGB"), one) for one in each],
        lambda: [render_views(decode(file, max_pixels=MAX_PIXELS), one, specs) for one in each],
        lambda: draw_views(uniforms, *sizes, specs),
    )
    names = ("pillow", "clove", "pillow_with_decode", "clove_with_decode", "draw")
    return {f"{name}_ms": 1e3 * each / images for name, each in zip(names, seconds, strict=True)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--photo", type=Path)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    jpeg = args.photo.read_bytes() if args.photo else made_up_photo()
    for case, case_specs in CASES.items():
        result = bench(jpeg, case_specs, images=args.images, rounds=args.rounds)
        speedup = {
            "ratio": result["pillow_ms"] / result["clove_ms"],
            "ratio_with_decode": result["pillow_with_decode_ms"] / result["clove_with_decode_ms"],
        }
        line = {name: round(value, 3) for name, value in (result | speedup).items()}
        print(json.dumps({"case": case, **line, "torch": torch.__version__}))
