"""Dense maps for pictures, finer than one cell per stride, and their main directions as colours.

Two ways lead to a finer map. A larger input has more cells, but things look
larger to the network than in training. Sliding shifts the input by parts of a
cell and puts the maps of all shifts into each other: more cells at the same
scale, at the cost of one forward pass per shift.

Dimensions: an image is H x W pixels, D channels, h x w cells, S shifts per axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from clove_ssl.layers.normalization import unit_vectors
from clove_ssl.views.batch import normalize

Maps = Callable[[Tensor], Tensor]
"""Normalised images (1, 3, H, W) to maps (1, D, h, w)."""

_LONGEST = 50
_MOST_ROWS = 20_000  # cells that the main directions are found from


def fitted(image: Tensor, side: float, stride: int) -> Tensor:
    """An image (3, H, W) scaled to about ``side`` on its shorter side, in whole cells.

    A strip of pixels becomes ``_LONGEST`` times as long at most.
    """
    height, width = image.shape[1:]
    scale = min(side / min(height, width), _LONGEST * side / max(height, width))
    size = [max(1, round(scale * length / stride)) * stride for length in (height, width)]
    return F.interpolate(image[None], size, mode="bilinear", antialias=True)[0]


@torch.no_grad()
def sliding_map(maps: Maps, image: Tensor, *, stride: int, slide: int) -> Tensor:
    """The map of an image (3, H, W) of whole cells, with ``slide`` cells per cell and axis.

    (3, H, W) uint8 -> (D, h * S, w * S). The edge of the image is repeated where a shift looks
    beyond it.
    """
    height, width = image.shape[1:]
    pixels = normalize(image[None], torch.float32, channels_last=False)
    padded = F.pad(pixels, (stride, stride, stride, stride), mode="replicate")
    # Shifts lie around 0, so that the fine cells cover the same area as the coarse ones.
    starts = [round(stride * (1 + (2 * s + 1 - slide) / (2 * slide))) for s in range(slide)]
    rows = [
        torch.stack(
            [maps(padded[:, :, y : y + height, x : x + width])[0] for x in starts], dim=-1
        )  # (D, h, w, S)
        for y in starts
    ]
    stacked = torch.stack(rows, dim=2)  # (D, h, S, w, S)
    return stacked.flatten(3, 4).flatten(1, 2)


def principal_colours(groups: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
    """Maps (D, h, w) as colours (h, w, 3) from 0 to 1, with one basis for all of them.

    A group holds the maps of one network; each group is centred on its own, so
    that a constant difference between networks takes up no colour. Features
    count by direction. The ends of each colour are its 1st and 99th percentile.
    """
    if not groups:
        return []
    rows = [torch.cat([_rows(each) for each in group]) for group in groups]  # (N, D) each
    centred = [part - part.mean(0) for part in rows]
    together = torch.cat(centred).double()
    sample = together[:: -(-len(together) // _MOST_ROWS)]
    basis = _main_directions(sample)  # (D, 3)
    values = together @ basis  # (N, 3)
    low, high = (torch.quantile(thinned(values), share, dim=0) for share in (0.01, 0.99))
    shares = ((values - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
    sizes = [each.shape[1:] for group in groups for each in group]
    pieces = iter(torch.split(shares, [size.numel() for size in sizes]))
    return [[next(pieces).reshape(*each.shape[1:], 3) for each in group] for group in groups]


def cell_at(place: tuple[float, float], grid: tuple[int, int]) -> tuple[int, int]:
    """Row and column of the cell at a share of width and height."""
    x, y = place
    rows, columns = grid
    return min(int(y * rows), rows - 1), min(int(x * columns), columns - 1)


def similarity_maps(query: Tensor, maps: Sequence[Tensor]) -> list[Tensor]:
    """Cosines of one feature (D,) with all cells of maps (D, h, w): (h, w) each."""
    wanted = unit_vectors(query[None])[0]  # (D,)
    return [torch.einsum("d,dhw->hw", wanted, unit_vectors(each, dim=0)) for each in maps]


def _rows(feature_map: Tensor) -> Tensor:
    return unit_vectors(feature_map.flatten(1).mT.float()).cpu()  # (h * w, D)


def _main_directions(rows: Tensor) -> Tensor:
    """The three directions (D, 3) of most variance, with signs that do not depend on chance."""
    _, vectors = torch.linalg.eigh(rows.mT @ rows)  # in ascending order
    top = vectors[:, -3:].flip(1)  # (D, 3)
    if top.shape[1] < 3:
        top = F.pad(top, (0, 3 - top.shape[1]))
    largest = top.gather(0, top.abs().argmax(0, keepdim=True))  # (1, 3)
    signed: Tensor = top * torch.where(largest < 0, -1.0, 1.0)
    return signed


def thinned(values: Tensor) -> Tensor:
    """Evenly chosen rows, not more than quantiles can be taken of."""
    return values[:: -(-len(values) // 1_000_000)]
