"""The dense probe: how much a linear classifier reads off frozen features.

Every image is scaled to a square, the frozen backbone gives a feature map, and
a linear classifier is fitted to its cells. A cell's label is the class of most
of its pixels; cells without a class that has at least half of them, and cells
that are mostly unjudged, teach nothing. On the test images the logits are
scaled up bilinearly and every judged pixel counts.

Dimensions: N images of S x S pixels, D channels, h x w cells, K classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from clove_ssl.backbones.build import Backbone
from clove_ssl.data.labelled import IGNORE, DenseLabels
from clove_ssl.engine.probe_classifier import LinearClassifier, choose_and_fit
from clove_ssl.engine.probe_features import FrozenFeatures
from clove_ssl.errors import UserError
from clove_ssl.tasks.scoring.segmentation import (
    accuracy,
    class_iou,
    confusion,
    iou_interval,
    mean_iou,
)

_BATCH = 32


@dataclass(frozen=True)
class ProbeResult:
    """Scores on the test images, all between 0 and 1."""

    miou: float  # mean over the classes that occur or were predicted
    interval: tuple[float, float]  # 95 % of it, over resamples of the test images
    accuracy: float  # share of judged pixels
    per_class: dict[str, float]  # intersection over union of the same classes
    cells: int  # cells the classifier learned from
    penalty: float  # the weight penalty that was chosen


@dataclass(frozen=True)
class _Pictures:
    """Images and label maps of one size."""

    images: Tensor  # (N, 3, S, S) uint8
    labels: Tensor  # (N, S, S) uint8

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        images, labels = torch.split(self.images, _BATCH), torch.split(self.labels, _BATCH)
        return zip(images, labels, strict=True)


@dataclass(frozen=True)
class _Cells:
    """What the classifier learns from."""

    features: Tensor  # (cells, D)
    labels: Tensor  # (cells,)
    image: Tensor  # (cells,) the image each is from


def dense_probe(
    backbone: Backbone,
    train: DenseLabels,
    test: DenseLabels,
    *,
    size: int = 224,
    stage: str | Sequence[str] | None = None,
    device: torch.device | str = "cpu",
    max_train: int = 1000,
    max_test: int = 500,
    max_cells: int = 50_000,
    seed: int = 0,
) -> ProbeResult:
    """Fit a linear classifier to frozen features of ``train`` and score it on ``test``.

    Args:
        backbone: Not changed; its batch-norm statistics are taken afresh for the probe.
        train: Images the classifier learns from.
        test: Images it is scored on, with the same classes.
        size: Side in pixels to which images are scaled, whatever their shape.
        stage: The map to probe, or several that are stacked; by default the pre-trained one.
        device: Where features are made and the classifier is fitted.
        max_train: Of a larger training set, this many images spread evenly over it are used.
        max_test: The same for the test set.
        max_cells: Of more training cells, a random share of every image is used.
        seed: Draws those cells, the held-out images and the resamples.
    """
    _check_sets(train, test)
    generator = torch.Generator().manual_seed(seed)
    stages = (backbone.stage,) if stage is None else (stage,) if isinstance(stage, str) else stage
    extract = FrozenFeatures(backbone, stages, device=device)
    classes = len(train.class_names)

    learning = _load(train, size, limit=max_train)
    extract.calibrate(learning.images)
    cells = _collect_cells(extract, learning, classes, limit=max_cells, generator=generator)
    held_out = _hold_out(cells.image, generator)
    classifier, penalty = choose_and_fit(cells.features, cells.labels, held_out, classes=classes)

    by_image = _confusions(extract, classifier, _load(test, size, limit=max_test))  # (N, K, K)
    counts = by_image.sum(0)
    return ProbeResult(
        miou=mean_iou(counts),
        interval=iou_interval(by_image, generator),
        accuracy=accuracy(counts),
        per_class={train.class_names[k]: iou for k, iou in class_iou(counts).items()},
        cells=len(cells.labels),
        penalty=penalty,
    )


def _check_sets(train: DenseLabels, test: DenseLabels) -> None:
    if train.class_names != test.class_names:
        raise UserError("The training and test images of the probe have different classes.")
    if len(train) < 2 or len(test) < 1:
        raise UserError(
            f"The probe has {len(train)} training and {len(test)} test images. It needs at least 2 "
            "and 1, and some hundred of both to be worth anything."
        )


def _load(source: DenseLabels, size: int, *, limit: int) -> _Pictures:
    """Images scaled to ``size``, spread evenly over the set when there are more than ``limit``."""
    count = min(limit, len(source))
    chosen = (number * len(source) // count for number in range(count))
    pictures = [_scale(*source.load(index), size) for index in chosen]
    images, labels = zip(*pictures, strict=True)
    return _Pictures(torch.stack(images), torch.stack(labels))


def _scale(image: Tensor, labels: Tensor, size: int) -> tuple[Tensor, Tensor]:
    if image.shape[1:] == (size, size):
        return image, labels
    pixels = F.interpolate(image[None].float(), (size, size), mode="bilinear", antialias=True)
    numbers = F.interpolate(labels[None, None].float(), (size, size), mode="nearest-exact")
    return pixels[0].round().clamp(0, 255).byte(), numbers[0, 0].byte()


def _collect_cells(
    extract: FrozenFeatures,
    pictures: _Pictures,
    classes: int,
    *,
    limit: int,
    generator: torch.Generator,
) -> _Cells:
    quota = max(1, limit // len(pictures.images))
    features, targets, origins = [], [], []
    for start, (images, labels) in enumerate(pictures.batches()):
        maps = extract(images)  # (B, D, h, w)
        grid = cell_labels(labels, (maps.shape[2], maps.shape[3]), classes)  # (B, h, w)
        chosen = _choose(grid.flatten(1) != IGNORE, quota, generator)  # (B, h * w)
        features.append(maps.flatten(2).mT[chosen.to(maps.device)])
        targets.append(grid.flatten(1)[chosen])
        origins.append(start * _BATCH + chosen.nonzero()[:, 0])
    if not sum(map(len, targets)):
        raise UserError(
            "No cell of the training images has a class of its own: everything is unjudged, or "
            "cells are too coarse. Give a larger --size or an earlier stage."
        )
    stacked = torch.cat(features)
    return _Cells(stacked, torch.cat(targets).to(stacked.device), torch.cat(origins))


def cell_labels(labels: Tensor, grid: tuple[int, int], classes: int) -> Tensor:
    """Class of most pixels of each cell: (B, S, S) -> (B, h, w); 255 where none has half."""
    numbers = torch.where(labels == IGNORE, classes, labels.long())
    shares = torch.stack(
        [F.adaptive_avg_pool2d((numbers == k).float(), grid) for k in range(classes + 1)], dim=1
    )  # (B, K + 1, h, w)
    share, winner = shares.max(1)  # (B, h, w)
    return torch.where((share >= 0.5) & (winner < classes), winner, IGNORE)


def _choose(usable: Tensor, quota: int, generator: torch.Generator) -> Tensor:
    """At most ``quota`` of the usable cells of every image: (B, L) bool."""
    if usable.shape[1] <= quota:
        return usable
    keys = torch.rand(usable.shape, generator=generator).masked_fill(~usable, 2.0)  # (B, L)
    return usable & (keys <= keys.kthvalue(quota, dim=1, keepdim=True).values)


def _hold_out(image: Tensor, generator: torch.Generator) -> Tensor:
    """The cells of a tenth of the images, and of one at least: (cells,) bool."""
    present = torch.unique(image)
    if len(present) < 2:
        raise UserError("Only one training image of the probe has usable labels; it needs 2.")
    order = torch.randperm(len(present), generator=generator)
    return torch.isin(image, present[order[: max(1, len(present) // 10)]])


def _confusions(
    extract: FrozenFeatures, classifier: LinearClassifier, pictures: _Pictures
) -> Tensor:
    """Judged pixels by true and predicted class, for every image: (N, K, K)."""
    classes = len(classifier.bias)
    found = []
    for images, labels in pictures.batches():
        logits = classifier.map_logits(extract(images))  # (B, K, h, w)
        logits = F.interpolate(logits, labels.shape[1:], mode="bilinear", align_corners=False)
        predicted = logits.argmax(1).cpu()  # (B, S, S)
        for truth, guess in zip(labels, predicted, strict=True):
            judged = truth != IGNORE
            found.append(confusion(truth[judged], guess[judged], classes))
    return torch.stack(found)
