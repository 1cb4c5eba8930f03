"""The soak tells a leak from noise."""

from __future__ import annotations

import numpy as np

from benchmarks.soak import slopes


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
