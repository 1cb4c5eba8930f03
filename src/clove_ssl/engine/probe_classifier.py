"""A linear classifier of cells, fitted to the end: nothing to tune, nothing random.

Multinomial logistic regression by L-BFGS from zero weights. The problem is
convex, so the result does not depend on a learning rate, an order or a seed.

Dimensions: N cells, D channels, K classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

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
) -> tuple[LinearClassifier, float]:
    """Fit on all cells with the penalty that predicts the held-out ones best."""
    trials = [
        fit(features[~held_out], labels[~held_out], classes=classes, penalty=penalty)
        for penalty in PENALTIES
    ]
    losses = [
        F.cross_entropy(trial.cell_logits(features[held_out]), labels[held_out]).item()
        for trial in trials
    ]
    best = PENALTIES[losses.index(min(losses))]
    return fit(features, labels, classes=classes, penalty=best), best


@torch.enable_grad()
def fit(features: Tensor, labels: Tensor, *, classes: int, penalty: float) -> LinearClassifier:
    """Minimise cross-entropy plus half ``penalty`` times the squared weights; no bias decays."""
    mean, scale = _standardisation(features)
    inputs = (features - mean) * scale  # (N, D)
    weight = inputs.new_zeros(classes, inputs.shape[1], requires_grad=True)  # (K, D)
    bias = inputs.new_zeros(classes, requires_grad=True)  # (K,)
    optimizer = torch.optim.LBFGS(
        [weight, bias], max_iter=_ITERATIONS, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(F.linear(inputs, weight, bias), labels)
        value = value + 0.5 * penalty * weight.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return LinearClassifier(mean, scale, weight.detach(), bias.detach())


def _standardisation(features: Tensor) -> tuple[Tensor, Tensor]:
    mean, deviation = features.mean(0), features.std(0)
    dead = deviation < 1e-6  # a channel that never moves says nothing, and must not be blown up
    return mean, torch.where(dead, 0.0, 1 / deviation.clamp(min=1e-6))
