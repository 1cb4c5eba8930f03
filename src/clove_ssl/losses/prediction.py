"""Predict the embedding of one view from that of another: the loss of BYOL.

Dimensions: N rows, D channels.
"""

from __future__ import annotations

import torch
from torch import Tensor


def prediction_cosines(prediction: Tensor, target: Tensor) -> Tensor:
    """Cosine of every (N, D) row with its target: (N,), unit vectors in, fp32 or better out."""
    if prediction.shape != target.shape:
        raise ValueError(
            f"prediction {tuple(prediction.shape)} and target {tuple(target.shape)} must be alike"
        )
    wide = torch.promote_types(prediction.dtype, torch.float32)
    return (prediction.to(wide) * target.to(wide)).sum(-1)


def prediction_loss(prediction: Tensor, target: Tensor) -> Tensor:
    """2 - 2 cos, averaged over rows: the squared distance of unit vectors."""
    return 2 - 2 * prediction_cosines(prediction, target).mean()
