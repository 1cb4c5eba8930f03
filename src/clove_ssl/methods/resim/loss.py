"""ReSim's loss between windows: find the same window of the other view among cells of the batch.

A window's positive is its counterpart in the other view. Its negatives are
cells of key maps, averaged over 3x3 to about the size of a window. They come
from all images of a group, the window's own image and the place of its
positive included, as in the released code.

Dimensions: B images, N windows of each, D channels, G groups of images, S
negatives of a group, h x w cells.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from clove_ssl.layers.fp32 import at_least_fp32
from clove_ssl.methods.contrastive import Contrast, contrast

CELLS_ACROSS = 3  # cells whose mean is a negative, along each axis


def averaged_cells(key_map: Tensor) -> Tensor:
    """Means of all 3x3 cells of (B, D, h, w) as unit vectors: (B, (h - 2) * (w - 2), D)."""
    means = F.avg_pool2d(at_least_fp32(key_map), CELLS_ACROSS, stride=1)  # (B, D, h - 2, w - 2)
    return F.normalize(means, dim=1).flatten(2).mT


def contrast_windows(
    query: Tensor,  # (B, N, D) unit vectors
    positive: Tensor,  # (B, N, D) unit vectors
    negatives: Tensor,  # (G, S, D) unit vectors
    *,
    temperature: float,
) -> Contrast:
    """InfoNCE of every window; B / G images in a row share the negatives of a group."""
    groups = len(negatives)
    if len(query) % groups:
        raise ValueError(f"{len(query)} images cannot be shared out to {groups} groups")

    def of_a_group(q: Tensor, p: Tensor, n: Tensor) -> Contrast:
        return contrast(q, p, n, temperature=temperature)

    # One batched product: groups in a loop would be as many small kernels, each waiting for the
    # host.
    by_group: Callable[..., Any] = torch.vmap(of_a_group)
    shape = (groups, -1, *query.shape[1:])
    results: Contrast = by_group(query.reshape(shape), positive.reshape(shape), negatives)
    return Contrast(*(values.flatten(0, 1) for values in results))
