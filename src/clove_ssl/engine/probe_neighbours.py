"""Nearest neighbours among unit vectors, in blocks that fit any device.

Dimensions: N queries, M keys with known classes, D channels, K classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from clove_ssl.modules.normalization import unit_vectors

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
