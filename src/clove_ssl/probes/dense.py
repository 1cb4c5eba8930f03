"""Probes of images with a class for every pixel.

Every image is scaled to a square, the frozen backbone gives a feature map, and
something that has seen labelled cells says what other cells show. Either a linear
classifier is fitted to them (``segmentation``), or the nearest cells of other images
vote (``retrieval``), for which nothing is fitted at all.

A cell's label is the class of most of its pixels; cells without a class that has at
least half of them, and cells that are mostly unjudged, teach nothing. On the test
images the scores of classes are scaled up bilinearly and every judged pixel counts.

Dimensions: N images of S x S pixels, D channels, h x w cells, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from clove_ssl.backbones.build import Backbone
from clove_ssl.data.labels.pixels import IGNORE, DenseLabels
from clove_ssl.errors import UserError
from clove_ssl.probes.classifiers import Bank, choose_and_fit
from clove_ssl.probes.features import BATCH, FrozenFeatures, Pictures, load_pictures
from clove_ssl.tasks.semantic.scores import accuracy, class_iou, confusion, iou_interval, mean_iou

ScoreCells = Callable[[Tensor], Tensor]
"""Feature maps (B, D, h, w) to scores of the classes (B, K, h, w)."""


@dataclass(frozen=True)
class ProbeResult:
    """Scores on the test images, all between 0 and 1."""

    miou: float  # mean over the classes that occur or were predicted
    interval: tuple[float, float]  # 95 % of it, over resamples of the test images
    accuracy: float  # share of judged pixels
    per_class: dict[str, float]  # intersection over union of the same classes
    cells: int  # cells that were learned from
    penalty: float | None = None  # the weight penalty that was chosen, of a classifier


@dataclass(frozen=True)
class Cells:
    """What is learned from."""

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
    check_sets(train, test)
    stages = (backbone.stage,) if stage is None else (stage,) if isinstance(stage, str) else stage
    extract = FrozenFeatures(backbone, stages, device=device)
    learning = load_pictures(train, size=size, limit=max_train)
    # On the training images: statistics of test images would let the test leak into the features.
    extract.calibrate(learning.images)
    generator = torch.Generator().manual_seed(seed)
    cells = collect_cells(extract, learning, limit=max_cells, generator=generator)
    judged = load_pictures(test, size=size, limit=max_test)
    return segmentation(extract, cells, judged, generator=generator)


def segmentation(
    extract: FrozenFeatures, cells: Cells, judged: Pictures, *, generator: torch.Generator
) -> ProbeResult:
    """What a linear classifier of ``cells`` says about ``judged``."""
    classes = len(judged.class_names)
    # Whole images are held out. Cells of one image resemble each other, and a penalty chosen among
    # neighbours would be too small.
    held_out = _hold_out(cells.image, generator)
    classifier, penalty = choose_and_fit(cells.features, cells.labels, held_out, classes=classes)
    by_image = _confusions(extract, classifier.map_logits, judged)  # (N, K, K)
    return _result(by_image, judged, cells, penalty=penalty, generator=generator)


def retrieval(
    extract: FrozenFeatures, cells: Cells, judged: Pictures, *, generator: torch.Generator
) -> ProbeResult:
    """What the nearest of ``cells`` say about ``judged``."""
    bank = Bank.of(cells.features, cells.labels, classes=len(judged.class_names))

    def votes(maps: Tensor) -> Tensor:
        cells = maps.movedim(1, -1)  # (B, h, w, D)
        shares = bank.votes(cells.flatten(0, 2))  # (B * h * w, K)
        return shares.reshape(*cells.shape[:3], -1).movedim(-1, 1)

    by_image = _confusions(extract, votes, judged)  # (N, K, K)
    return _result(by_image, judged, cells, penalty=None, generator=generator)


def check_sets(train: DenseLabels, test: DenseLabels) -> None:
    """Refuse sets that cannot be learned from and judged with."""
    if train.class_names != test.class_names:
        raise UserError("The training and test images of the probe have different classes.")
    if len(train) < 2 or len(test) < 1:
        raise UserError(
            f"The probe got {len(train)} training and {len(test)} test images; it needs 2 and 1 "
            "at least. Give it more labelled images."
        )


def collect_cells(
    extract: FrozenFeatures,
    pictures: Pictures,
    *,
    limit: int,
    generator: torch.Generator,
) -> Cells:
    """At most ``limit`` labelled cells, as many of every image."""
    quota = max(1, limit // len(pictures))
    classes = len(pictures.class_names)
    features, targets, origins = [], [], []
    for number, (images, labels) in enumerate(pictures.batches()):
        maps = extract(images)  # (B, D, h, w)
        side = (maps.shape[2], maps.shape[3])
        grid = cell_labels(labels.to(maps.device), side, classes).cpu()  # (B, h, w)
        chosen = _choose(grid.flatten(1) != IGNORE, quota, generator)  # (B, h * w)
        features.append(maps.flatten(2).mT[chosen.to(maps.device)])
        targets.append(grid.flatten(1)[chosen])
        origins.append(number * BATCH + chosen.nonzero()[:, 0])
    if not sum(map(len, targets)):
        raise UserError(
            "No cell of the training images has a class of its own: all pixels are unlabelled, "
            "or cells are too coarse. Give a larger --size or an earlier stage."
        )
    stacked = torch.cat(features)
    return Cells(stacked, torch.cat(targets).to(stacked.device), torch.cat(origins))


def cell_labels(labels: Tensor, grid: tuple[int, int], classes: int) -> Tensor:
    """Class of most pixels of each cell: (B, S, S) -> (B, h, w); 255 where none has half."""
    # What nobody judged is a class of its own here, so that it can win a cell and silence it.
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
    # The lowest of random keys are a fair choice without repetition; 2 never is among them.
    keys = torch.rand(usable.shape, generator=generator).masked_fill(~usable, 2.0)  # (B, L)
    return usable & (keys <= keys.kthvalue(quota, dim=1, keepdim=True).values)


def _hold_out(image: Tensor, generator: torch.Generator) -> Tensor:
    """The cells of a tenth of the images, and of one at least: (cells,) bool."""
    present = torch.unique(image)
    if len(present) < 2:
        raise UserError("Only one training image of the probe has usable labels; it needs 2.")
    order = torch.randperm(len(present), generator=generator)
    return torch.isin(image, present[order[: max(1, len(present) // 10)]])


def _confusions(extract: FrozenFeatures, score: ScoreCells, pictures: Pictures) -> Tensor:
    """Judged pixels by true and predicted class, for every image: (N, K, K)."""
    classes = len(pictures.class_names)
    found = []
    for images, labels in pictures.batches():
        scores = score(extract(images))  # (B, K, h, w)
        for truth, map_scores in zip(labels.to(scores.device), scores, strict=True):
            # One image at a time: all classes at all pixels of a batch would fill a small GPU.
            enlarged = F.interpolate(
                map_scores[None], truth.shape, mode="bilinear", align_corners=False
            )
            found.append(confusion(truth, enlarged[0].argmax(0), classes))
    return torch.stack(found)


def _result(
    by_image: Tensor,
    judged: Pictures,
    cells: Cells,
    *,
    penalty: float | None,
    generator: torch.Generator,
) -> ProbeResult:
    counts = by_image.sum(0)  # (K, K)
    if not counts.sum():
        raise UserError("No pixel of the test images is labelled. Give the probe other masks.")
    return ProbeResult(
        miou=mean_iou(counts),
        interval=iou_interval(by_image, generator),
        accuracy=accuracy(counts),
        per_class={judged.class_names[k]: iou for k, iou in class_iou(counts).items()},
        cells=len(cells.labels),
        penalty=penalty,
    )
