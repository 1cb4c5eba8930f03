"""The soak tells a leak from noise."""

from __future__ import annotations

import mmap
import os

import numpy as np

from benchmarks.soak import _memory, slopes

MEGABYTE = 2**20


def samples(rise: float) -> list[dict[str, float]]:
    noise = np.random.default_rng(0).normal(0, 3, 200)
    return [
        {"step": float(n), "memory MB": 500 + rise * n / 200 + noise[n], "open files": 30.0}
        for n in range(200)
    ]


def test_noise_is_flat_and_a_leak_is_not() -> None:
    assert all(figures["flat"] for figures in slopes(samples(0.0)).values())
    leaking = slopes(samples(40.0))
    assert not leaking["memory MB"]["flat"]
    assert leaking["open files"]["flat"]


def test_what_comes_behind_the_last_step_is_not_counted() -> None:
    after = [{"step": 199.0, "memory MB": 5000.0, "open files": 900.0}] * 50
    assert all(figures["flat"] for figures in slopes(samples(0.0) + after).values())


def test_what_grows_once_is_no_leak() -> None:
    grown = samples(0.0)
    for sample in grown[70:]:
        sample["memory MB"] += 44
    assert slopes(grown)["memory MB"]["flat"]
    assert not slopes([{**one, "memory MB": one["memory MB"] + one["step"]} for one in grown])[
        "memory MB"
    ]["flat"]


def test_a_page_that_is_copied_is_not_gained_where_shared_ones_count_twice() -> None:
    pages = mmap.mmap(-1, 64 * MEGABYTE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.write(bytes(64 * MEGABYTE))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(reading, 1)
        os._exit(0)
    try:
        shared = _taken(child)
        for place in range(0, 64 * MEGABYTE, 4096):
            pages[place] = 1
        copied = _taken(child)
    finally:
        os.write(writing, b"x")
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)
    assert copied["Pss_Anon"] - shared["Pss_Anon"] > 55
    assert abs(copied["Anonymous"] - shared["Anonymous"]) < 8


def _taken(child: int) -> dict[str, float]:
    """Megabytes of this process and of its child, counted in both ways."""
    members = (os.getpid(), child)
    return {
        kind: sum(_memory(member, kind) for member in members) for kind in ("Pss_Anon", "Anonymous")
    }
