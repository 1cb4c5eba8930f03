"""A linear classifier of cells or images: nothing to tune, nothing random.

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

import torch
import torch.nn.functional as F
from torch import Tensor

from clove_ssl.layers.normalization import unit_vectors
from clove_ssl.tasks.semantic.scores import confusion, mean_iou

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
