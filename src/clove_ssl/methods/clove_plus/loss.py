"""Losses on whole images in views of two sizes: which views are compared, and how.

Dimensions: B images, N images of all processes, D channels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from clove_ssl.config.views import ViewsConfig
from clove_ssl.layers.fp32 import at_least_fp32
from clove_ssl.methods.variance import Gather
from clove_ssl.views.batch import View


def pairs_with_large(large: int, small: int) -> list[tuple[int, int]]:
    """Every pair of large views, and every large view with every small one; each pair once."""
    return [(i, j) for i in range(large) for j in range(i + 1, large + small)]


def counts_of_pairs(
    views: Sequence[View], pairs: Sequence[tuple[int, int]], config: ViewsConfig
) -> list[Tensor]:
    """How much each image (B) counts in each pair: nothing, unless it is flipped alike in both.

    The others count the more. Divided by how many there are, a share of the batch would not add up
    to what the whole batch gives, so their chance is taken.
    """
    chance = config.flips_apart if config.shared_flip else config.flip_probability
    often = chance**2 + (1 - chance) ** 2  # two views are flipped alike, each by its own chance
    with_first = 1 - chance if config.shared_flip else often
    flipped = [view.geometry.flipped for view in views]
    return [(flipped[i] == flipped[j]) / (often if i else with_first) for i, j in pairs]


def contrast_images(
    vectors: Sequence[Tensor],  # of every view, (B, D)
    pairs: Sequence[tuple[int, int]],
    *,
    temperature: float,
    gather: Gather,
    counts: Sequence[Tensor] | None = None,
) -> Tensor:
    """Find each image of one view among all images of another; the mean over pairs, both ways."""
    with torch.autocast(vectors[0].device.type, enabled=False):
        units = [F.normalize(at_least_fp32(each), dim=1) for each in vectors]
        everyone = [gather(each) for each in units]  # (N, D) each
        losses = []
        for number, (i, j) in enumerate(pairs):
            same = (units[i] * units[j]).sum(1) / temperature  # (B,)
            for here, there in ((i, j), (j, i)):
                all_images = units[here] @ everyone[there].T / temperature  # (B, N)
                each = all_images.logsumexp(1) - same
                losses.append((each if counts is None else counts[number] * each).mean())
        return torch.stack(losses).mean()
