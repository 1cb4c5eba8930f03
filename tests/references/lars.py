"""LARS on one array, as CLoVE's and PixPro's code do it, in plain NumPy."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def lars_path(
    parameter: np.ndarray,
    gradients: Iterable[np.ndarray],
    *,
    lr: Iterable[float],
    momentum: float,
    weight_decay: float,
    trust: float,
    eps: float = 1e-8,
) -> list[np.ndarray]:
    """The parameter after each step."""
    path, buffer = [], np.zeros_like(parameter)
    for gradient, rate in zip(gradients, lr, strict=True):
        update = gradient
        if parameter.ndim > 1:
            update = gradient + weight_decay * parameter
            weight_norm, update_norm = np.linalg.norm(parameter), np.linalg.norm(update)
            if weight_norm > 0 and update_norm > 0:
                update = update * trust * weight_norm / (update_norm + eps)
        buffer = momentum * buffer + update
        parameter = parameter - rate * buffer
        path.append(parameter)
    return path
