"""Intersection over union from confusion counts, with an interval over images.

Dimensions: N images, K classes. A confusion counts pixels (or cells) by their
true class in the rows and the predicted one in the columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

_RESAMPLES = 200
_INTERVAL = (0.025, 0.975)


def confusion(truth: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """Counts by true and predicted class, of equally long lists: (K, K) float64 on the CPU."""
    pairs = truth.long() * classes + predicted
    return pairs.bincount(minlength=classes**2).view(classes, classes).double().cpu()


def class_iou(counts: Tensor) -> dict[int, float]:
    """Intersection over union of every class that occurs or was predicted."""
    union = counts.sum(0) + counts.sum(1) - counts.diagonal()  # (K,)
    iou = counts.diagonal() / union
    return {k: iou[k].item() for k in range(len(iou)) if union[k] > 0}


def mean_iou(counts: Tensor) -> float:
    """The mean of :func:`class_iou`; 0 when there is nothing to score."""
    values = class_iou(counts).values()
    return sum(values) / len(values) if values else 0.0


def accuracy(counts: Tensor) -> float:
    """Share of what was counted that was predicted right."""
    return (counts.diagonal().sum() / counts.sum()).item()


def iou_interval(counts_by_image: Tensor, generator: torch.Generator) -> tuple[float, float]:
    """Where the mean would lie in 95 % of cases for other images of the same kind: (N, K, K)."""
    count = len(counts_by_image)
    draws = torch.randint(count, (_RESAMPLES, count), generator=generator)
    scores = torch.tensor([mean_iou(counts_by_image[draw].sum(0)) for draw in draws])
    low, high = scores.quantile(torch.tensor(_INTERVAL)).tolist()
    return low, high
