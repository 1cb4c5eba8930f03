"""Semantic segmentation: intersection over union from confusion counts.

A confusion counts pixels (or cells) by their true class in the rows and the
predicted one in the columns. Pixels whose true class is 255 were judged by nobody
and count nowhere.

Dimensions: N images, K classes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clove_ssl.data.labels.pixels import IGNORE

_RESAMPLES = 200
_INTERVAL = (0.025, 0.975)


def confusion(truth: Tensor, predicted: Tensor, classes: int, *, ignore: int = IGNORE) -> Tensor:
    """Counts by true and predicted class, of maps of one shape: (K, K) float64 on the CPU."""
    if truth.shape != predicted.shape:
        raise ValueError(f"truth {tuple(truth.shape)}, but predicted {tuple(predicted.shape)}")
    judged = truth != ignore
    truth, predicted = truth[judged].long(), predicted[judged].long()
    _check_range(truth, classes)
    _check_range(predicted, classes)
    # One number per pair of classes: a single count instead of one per class.
    pairs = truth * classes + predicted
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
    """Where the mean would lie in 95 % of cases for other images of the same kind: (N, K, K).

    A class whose few images are missing in a resample keeps its score of all images there. Were
    it left out of the mean, the rare classes, which are the hard ones, would count less often in
    resamples than in the score, and the score would lie at the lower end of its own interval.
    """
    count = len(counts_by_image)
    draws = torch.randint(count, (_RESAMPLES, count), generator=generator)
    usual = class_iou(counts_by_image.sum(0))
    if not usual:
        return 0.0, 0.0
    means = [_mean_of(usual, counts_by_image[draw].sum(0)) for draw in draws]
    scores = torch.tensor(means, dtype=torch.float64)
    low, high = scores.quantile(torch.tensor(_INTERVAL, dtype=torch.float64)).tolist()
    return low, high


def _mean_of(usual: dict[int, float], counts: Tensor) -> float:
    """The mean over the same classes for every resample."""
    found = class_iou(counts)
    return sum(found.get(k, iou) for k, iou in usual.items()) / len(usual)


def _check_range(labels: Tensor, classes: int) -> None:
    """A label beyond the classes would be counted as another pair."""
    if labels.numel() and not 0 <= labels.min() <= labels.max() < classes:
        low, high = int(labels.min()), int(labels.max())
        raise ValueError(f"labels from {low} to {high}, but {classes} classes")
