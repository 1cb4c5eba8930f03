"""Losses on whole images in views of two sizes: which views are compared, and how.

Dimensions: B images, N images of all processes, D channels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from clove_ssl.layers.fp32 import at_least_fp32
from clove_ssl.methods.variance import Gather


def pairs_with_large(large: int, small: int) -> list[tuple[int, int]]:
    """Every pair of large views, and every large view with every small one; each pair once."""
    return [(i, j) for i in range(large) for j in range(i + 1, large + small)]


def contrast_images(
    vectors: Sequence[Tensor],  # of every view, (B, D)
    pairs: Sequence[tuple[int, int]],
    *,
    temperature: float,
    gather: Gather,
) -> Tensor:
    """Find each image of one view among all images of another; the mean over pairs, both ways."""
    with torch.autocast(vectors[0].device.type, enabled=False):
        units = [F.normalize(at_least_fp32(each), dim=1) for each in vectors]
        everyone = [gather(each) for each in units]  # (N, D) each
        losses = []
        for i, j in pairs:
            same = (units[i] * units[j]).sum(1) / temperature  # (B,)
            for here, there in ((i, j), (j, i)):
                all_images = units[here] @ everyone[there].T / temperature  # (B, N)
                losses.append((all_images.logsumexp(1) - same).mean())
        return torch.stack(losses).mean()
