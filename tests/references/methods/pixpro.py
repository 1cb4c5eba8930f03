"""PixPro's formulas as loops, in float64."""

from __future__ import annotations

import torch
from torch import Tensor


def propagate(x: Tensor, weight: Tensor, bias: Tensor, power: float) -> Tensor:
    """y_i = sum_j max(cos(x_i, x_j), 0)^power g(x_j) / |g(x_j)| for (B, D, h, w)."""
    out = torch.zeros_like(x)
    images, _, rows, columns = x.shape
    cells = [(r, c) for r in range(rows) for c in range(columns)]
    for b in range(images):
        for r, c in cells:
            for r2, c2 in cells:
                here, there = x[b, :, r, c], x[b, :, r2, c2]
                cosine = float(here @ there / (here.norm() * there.norm()))
                likeness = max(cosine, 0.0) + (1e-6 if power < 1 else 0.0)
                value = weight @ there + bias
                out[b, :, r, c] += likeness**power * value / value.norm()
    return out


def attraction(guess: Tensor, target: Tensor, matches: Tensor) -> float:
    """Mean over images of -2 mean cos over their matching pairs; without a pair 0."""
    total = 0.0
    for image, (a, b) in enumerate(zip(guess.flatten(2), target.flatten(2), strict=True)):
        pairs = matches[image].nonzero().tolist()
        cosines = [float(a[:, i] @ b[:, j] / (a[:, i].norm() * b[:, j].norm())) for i, j in pairs]
        total += -2 * sum(cosines) / max(1, len(cosines))
    return total / len(guess)
