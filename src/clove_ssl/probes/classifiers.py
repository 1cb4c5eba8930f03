"""What frozen features say about classes: a linear classifier of cells or images, and neighbours.

``knn`` lets the most similar training images vote; ``linear`` chooses the penalty of a logistic
regression on a tenth of the training images.

Multinomial logistic regression by L-BFGS from zero weights. The problem is
convex, so neither a learning rate nor an order nor a seed plays a part.

Classes weigh as one over the root of their frequency. Where most cells are
background, the unweighted optimum of weak features is to say background
everywhere, and all weak features score alike; equal weights would let the
rarest classes flood the image. The root keeps the probe sensitive in between.

Dimensions: N cells or images, D channels, K classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from clove_ssl.data.labels.classes import ClassLabels
from clove_ssl.data.sources import ImageSource
from clove_ssl.errors import UserError
from clove_ssl.layers.normalization import unit_vectors
from clove_ssl.probes.features import load_images, spread
from clove_ssl.probes.scores import Score, share
from clove_ssl.tasks.semantic.scores import accuracy, confusion, mean_iou

PENALTIES = (1e-1, 1e-2, 1e-3)
"""Weights of the squared norm that are tried; the held-out images decide."""

_ITERATIONS = 60


@dataclass(frozen=True)
class LinearClassifier:
    """Standardises channels, then weighs them."""

    mean: Tensor  # (D,)
    scale: Tensor  # (D,)
    weight: Tensor  # (K, D)
    bias: Tensor  # (K,)

    def cell_logits(self, features: Tensor) -> Tensor:
        """(N, D) -> (N, K)."""
        return F.linear((features - self.mean) * self.scale, self.weight, self.bias)

    def map_logits(self, feature_map: Tensor) -> Tensor:
        """(B, D, h, w) -> (B, K, h, w)."""
        return self.cell_logits(feature_map.movedim(1, -1)).movedim(-1, 1)


def choose_and_fit(
    features: Tensor,  # (N, D)
    labels: Tensor,  # (N,)
    held_out: Tensor,  # (N,) bool
    *,
    classes: int,
    judge: Callable[[Tensor], float] = mean_iou,
) -> tuple[LinearClassifier, float]:
    """Fit on all cells with the penalty whose classifier scores best on the held-out ones.

    ``judge`` scores the counts (K, K) of true and predicted classes.
    """
    scores = {}
    for penalty in PENALTIES:
        trial = fit(features[~held_out], labels[~held_out], classes=classes, penalty=penalty)
        predicted = trial.cell_logits(features[held_out]).argmax(1)
        scores[penalty] = judge(confusion(labels[held_out], predicted, classes, ignore=-1))
    best = max(PENALTIES, key=lambda penalty: scores[penalty])
    return fit(features, labels, classes=classes, penalty=best), best


@torch.enable_grad()
def fit(features: Tensor, labels: Tensor, *, classes: int, penalty: float) -> LinearClassifier:
    """Minimise weighted cross-entropy plus half ``penalty`` times the squared weights."""
    mean, scale = _standardisation(features)
    inputs = (features - mean) * scale  # (N, D)
    importance = _importance(labels, classes).to(inputs.dtype)
    weight = inputs.new_zeros(classes, inputs.shape[1], requires_grad=True)  # (K, D)
    bias = inputs.new_zeros(classes, requires_grad=True)  # (K,)
    optimizer = torch.optim.LBFGS(
        [weight, bias], max_iter=_ITERATIONS, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(F.linear(inputs, weight, bias), labels, weight=importance)
        value = value + 0.5 * penalty * weight.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return LinearClassifier(mean, scale, weight.detach(), bias.detach())


def _importance(labels: Tensor, classes: int) -> Tensor:
    """Weight of each class in the loss: one over the root of its frequency, (K,)."""
    counts = labels.bincount(minlength=classes).clamp(min=1)
    return counts.float().rsqrt()


def _standardisation(features: Tensor) -> tuple[Tensor, Tensor]:
    mean, deviation = features.mean(0), features.std(0)
    dead = deviation < 1e-6  # a channel that never moves says nothing, and must not be blown up
    return mean, torch.where(dead, 0.0, 1 / deviation.clamp(min=1e-6))


NEIGHBOURS = 20
TEMPERATURE = 0.07
"""How much closer neighbours weigh more: exp(cosine / temperature)."""

_LARGEST_BLOCK = 2**27  # similarities at a time, half a gigabyte


@dataclass(frozen=True)
class Bank:
    """What is known: features with their classes."""

    features: Tensor  # (M, D) of unit length
    labels: Tensor  # (M,)
    classes: int

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, *, classes: int) -> Bank:
        """A bank of features of any length."""
        return cls(unit_vectors(features), labels.to(features.device), classes)

    def votes(self, queries: Tensor) -> Tensor:
        """Shares of the classes among the neighbours of (N, D) queries, nearer ones weighing more.

        (N, K), each row with the sum 1.
        """
        rows = max(1, _LARGEST_BLOCK // len(self.features))
        return torch.cat([self._votes(block) for block in torch.split(unit_vectors(queries), rows)])

    def _votes(self, queries: Tensor) -> Tensor:
        similarity = queries @ self.features.T  # (N, M)
        best = similarity.topk(min(NEIGHBOURS, len(self.features)), dim=1)  # (N, k)
        weight = (best.values / TEMPERATURE).softmax(1)  # (N, k)
        # Adding into a table would not repeat itself on a GPU; a sum over a dimension does.
        chosen = F.one_hot(self.labels[best.indices], self.classes)  # (N, k, K)
        return (chosen * weight[:, :, None]).sum(1)


@dataclass(frozen=True)
class ClassSet:
    """Images of a source that have a class."""

    source: ImageSource
    labels: ClassLabels
    chosen: tuple[int, ...]  # numbers of the images in the source

    @classmethod
    def of(cls, source: ImageSource, labels: ClassLabels) -> ClassSet:
        """All images that have a class."""
        return cls(source, labels, tuple(labels.labelled().tolist()))

    def split(self, every: int) -> tuple[ClassSet, ClassSet]:
        """Two sets without a common image: the second gets every ``every``-th of each class."""
        place = _place_in_class(self.labels.numbers[list(self.chosen)])  # (N,)
        second = place % every == every - 1
        chosen = np.array(self.chosen)
        parts = (chosen[~second], chosen[second])
        first, other = (ClassSet(self.source, self.labels, tuple(p.tolist())) for p in parts)
        return first, other


@dataclass(frozen=True)
class Classified:
    """Images of one size with their classes."""

    images: Tensor  # (N, 3, S, S) uint8
    labels: Tensor  # (N,)
    class_names: tuple[str, ...]


def load_classified(
    chosen: ClassSet, class_names: tuple[str, ...], *, size: int, limit: int
) -> Classified:
    """At most ``limit`` images, spread evenly over the set; classes are told by name."""
    unknown = set(chosen.labels.class_names) - set(class_names)
    if unknown:
        raise UserError(
            f"The test images have the class {sorted(unknown)[0]!r}, which no training image has. "
            f"Expected some of: {', '.join(class_names[:10])}. Give --train other images."
        )
    indices = [chosen.chosen[place] for place in spread(len(chosen.chosen), limit)]
    renamed = [class_names.index(name) for name in chosen.labels.class_names]
    numbers = [renamed[int(chosen.labels.numbers[index])] for index in indices]
    images = load_images(chosen.source, indices, size=size)
    return Classified(images, torch.tensor(numbers), class_names)


def knn(
    known: Tensor, known_labels: Tensor, asked: Tensor, truth: Tensor, *, classes: int, seed: int
) -> Score:
    """Share of the features ``asked`` (N, D) whose neighbours among ``known`` are right."""
    votes = Bank.of(known, known_labels, classes=classes).votes(asked)  # (N, K)
    return _score(votes.argmax(1), truth, seed=seed)


def linear(
    known: Tensor, known_labels: Tensor, asked: Tensor, truth: Tensor, *, classes: int, seed: int
) -> Score:
    """Share of the features ``asked`` (N, D) that a classifier of ``known`` gets right."""
    labels = known_labels.to(known.device)
    held_out = torch.zeros(len(labels), dtype=torch.bool, device=labels.device)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    held_out[order[: max(1, len(labels) // 10)].to(labels.device)] = True
    classifier, _ = choose_and_fit(known, labels, held_out, classes=classes, judge=accuracy)
    return _score(classifier.cell_logits(asked).argmax(1), truth, seed=seed)


def _score(predicted: Tensor, truth: Tensor, *, seed: int) -> Score:
    right = (predicted.cpu() == truth.cpu()).double()  # (N,)
    commonest = truth.cpu().bincount().max().item() / len(truth)
    return share(right, torch.ones_like(right), chance=commonest, seed=seed)


def _place_in_class(
    numbers: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """For every image how many of its class come before it, (N,)."""
    places = np.empty(len(numbers), np.int64)
    for number in np.unique(numbers):
        members = np.flatnonzero(numbers == number)
        places[members] = np.arange(len(members))
    return places
