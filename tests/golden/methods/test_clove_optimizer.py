"""LARS and the schedules against recordings of the released code."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from references.lars import lars_path
from torch import nn

from clove_ssl.optimizers import LARS
from clove_ssl.schedules import cosine, warmup_cosine

pytestmark = pytest.mark.golden

Golden = Callable[[str], Mapping[str, np.ndarray]]


def group(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    start = f"{prefix}."
    return {k.removeprefix(start): v for k, v in arrays.items() if k.startswith(start)}


def test_lars_follows_the_recorded_path(golden: Golden) -> None:
    arrays = golden("methods/clove_lars.npz")
    parameters = {
        name: nn.Parameter(torch.from_numpy(value.copy()))
        for name, value in group(arrays, "param").items()
    }
    optimizer = LARS(
        parameters.values(),
        lr=1.0,
        momentum=float(arrays["momentum"]),
        weight_decay=float(arrays["weight_decay"]),
        trust=float(arrays["trust"]),
        eps=float(arrays["eps"]),
    )
    for step, rate in enumerate(arrays["lr"].tolist()):
        optimizer.param_groups[0]["lr"] = rate
        for name, parameter in parameters.items():
            parameter.grad = torch.from_numpy(arrays[f"grad.{name}"][step])
        optimizer.step()
        for name, parameter in parameters.items():
            np.testing.assert_allclose(
                parameter.detach(), arrays[f"after.{name}"][step], rtol=0, atol=1e-9, err_msg=name
            )


def test_the_lars_reference_follows_the_recorded_path(golden: Golden) -> None:
    arrays = golden("methods/clove_lars.npz")
    settings = {k: float(arrays[k]) for k in ("momentum", "weight_decay", "trust", "eps")}
    for name, start in group(arrays, "param").items():
        path = lars_path(start, arrays[f"grad.{name}"], lr=arrays["lr"], **settings)
        np.testing.assert_allclose(path, arrays[f"after.{name}"], rtol=0, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("name", ["clove200", "short", "nowarm"])
def test_schedules_have_the_recorded_values(golden: Golden, name: str) -> None:
    recorded = group(golden("methods/clove_schedules.npz"), name)
    per_epoch = int(recorded["steps_per_epoch"])
    total = int(recorded["epochs"]) * per_epoch
    lr = warmup_cosine(
        peak=float(recorded["peak"]),
        total_steps=total,
        warmup_steps=int(recorded["warmup_epochs"]) * per_epoch,
        start=float(recorded["warmup_start"]),
        final=float(recorded["final"]),
    )
    momentum = cosine(0.99, 1.0, total)
    steps = recorded["step"].tolist()
    np.testing.assert_allclose([lr(s) for s in steps], recorded["lr"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(
        [momentum(s) for s in steps], recorded["teacher_momentum"], rtol=0, atol=1e-9
    )
