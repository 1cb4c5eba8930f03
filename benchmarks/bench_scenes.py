"""Built-in scenes per second of one core, as bare images and with all labels.

Run:  python -m benchmarks.bench_scenes [--size 128] [--scenes 100] [--rounds 5]
Prints one JSON line. The fastest round counts, which other programs on the
machine disturb least.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import numpy as np

from clove_ssl.data.scenes import SceneSource


def images_per_second(draw: Callable[[int], object], *, scenes: int, rounds: int) -> float:
    """Rate of the fastest round over the same scenes."""
    draw(0)  # makes the noise that all scenes share
    fastest = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for index in range(scenes):
            draw(index)
        fastest = min(fastest, time.perf_counter() - start)
    return round(scenes / fastest, 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--scenes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    source = SceneSource(options.scenes, options.size)
    effort = {"scenes": options.scenes, "rounds": options.rounds}
    rates = {
        "with_labels_per_s": images_per_second(source.scene, **effort),
        "image_only_per_s": images_per_second(source.read, **effort),
    }
    print(json.dumps({"size": options.size, **effort, **rates, "numpy": np.__version__}))
