"""Probes of images that belong to classes: what pooled frozen features say about them.

``knn`` lets the most similar training images vote; ``linear`` fits a logistic
regression, whose penalty is chosen on a tenth of the training images.

Dimensions: N images, D channels, K classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from clove_ssl.data.labels.classes import ClassLabels
from clove_ssl.data.sources import ImageSource
from clove_ssl.errors import UserError
from clove_ssl.probes.classifiers import Bank, choose_and_fit
from clove_ssl.probes.images import load_images, spread
from clove_ssl.probes.scores import Score, share
from clove_ssl.tasks.semantic.scores import accuracy


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
