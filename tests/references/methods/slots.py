"""SlotCon's formulas as loops, in float64."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def soft(values: Tensor) -> Tensor:
    """Softmax of a row."""
    powers = torch.tensor([math.exp(float(v - values.max())) for v in values], dtype=torch.float64)
    return powers / powers.sum()


def group_loss(student: Tensor, teacher: Tensor, center: Tensor, *, tq: float, tk: float) -> float:
    """Mean over images and cells of the cross entropy between two assignments."""
    images, _, rows, columns = student.shape
    total = 0.0
    for b in range(images):
        for r in range(rows):
            for c in range(columns):
                target = soft((teacher[b, :, r, c] - center) / tk)
                guess = soft(student[b, :, r, c] / tq)
                total -= float((target * guess.log()).sum())
    return total / (images * rows * columns)


def slots(projection: Tensor, scores: Tensor, temperature: float) -> Tensor:
    """Assignment-weighted means of cells: (B, K, D)."""
    images, prototypes, rows, columns = scores.shape
    out = torch.zeros(images, prototypes, projection.shape[1], dtype=torch.float64)
    for b in range(images):
        weight_sum = torch.zeros(prototypes, dtype=torch.float64)
        for r in range(rows):
            for c in range(columns):
                taken = soft(scores[b, :, r, c] / temperature) + 1e-6
                out[b] += taken[:, None] * projection[b, :, r, c]
                weight_sum += taken
        out[b] /= weight_sum[:, None]
    return out


def active(scores: Tensor) -> list[set[int]]:
    """For every image the prototypes that win a cell."""
    return [
        {int(each[:, cell].argmax()) for cell in range(each.shape[1])} for each in scores.flatten(2)
    ]


def contrast(
    predicted: dict[tuple[int, int], Tensor], keys: dict[tuple[int, int], Tensor], tau: float
) -> float:
    """InfoNCE times 2 tau; both dictionaries are by image and prototype."""
    total = 0.0
    for place, query in predicted.items():
        logits = {
            other: float(query @ key / (query.norm() * key.norm())) / tau
            for other, key in keys.items()
        }
        top = max(logits.values())
        total += top + math.log(sum(math.exp(v - top) for v in logits.values())) - logits[place]
    return 2 * tau * total / len(predicted)
