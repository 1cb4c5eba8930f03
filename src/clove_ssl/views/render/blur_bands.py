"""The matrices of ``blurring.py`` for many views at once, on the device.

Away from the borders every row of a blur matrix is the same kernel, shifted, so a
small matrix stands for a large one: its first rows are those at one border, its
last rows those at the other, and the row in the middle repeats.

Dimensions: M views, S pixels along one axis, s <= S the side of the small matrix,
r the reach of the widest blur.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from clove_ssl.config.views import BlurKernel
from clove_ssl.views.draw.crops import Floats, Integers

_BOX_PASSES = 3
_SHARPEST = 1e-3  # pixels; a Gaussian this narrow changes nothing


def blur_reaches(sigma: Floats, kernel: BlurKernel) -> Integers:
    """How many pixels away a pixel still counts, for each sigma."""
    if kernel == "gaussian":
        return np.maximum(1, np.ceil(4 * sigma)).astype(np.int64)
    whole = np.floor((np.sqrt(12 * sigma**2 / _BOX_PASSES + 1) - 1) / 2)
    return (_BOX_PASSES * (whole + 1)).astype(np.int64)


def band_side(size: int, reach: int) -> int:
    """Side of the small matrix: all rows that differ, the middle one included."""
    return min(size, 4 * reach + 1)


def blur_bands(sigma: Tensor, size: int, *, reach: int, kernel: BlurKernel) -> Tensor:
    """Small blur matrices (M, s, s), float32, of the sigmas (M,); those of 0 are identities."""
    side = band_side(size, reach)
    # Weights become differences of running sums below, which would lose digits in fp32.
    sigma = sigma.double()[:, None]  # (M, 1)
    if kernel == "gaussian":
        offsets = torch.arange(-reach, reach + 1, device=sigma.device)
        weights = torch.exp(-0.5 * (offsets / sigma.clamp(min=_SHARPEST)).square())  # (M, 2r + 1)
        # Beyond its own reach a kernel is cut off, whatever the widest one of the group is.
        weights = weights * (offsets.abs() <= torch.ceil(4 * sigma).clamp(min=1))
        return _with_repeated_edges(weights, side).float()
    box = _with_repeated_edges(_box_weights(sigma, reach // _BOX_PASSES), side)
    return (box @ box @ box).float()  # _BOX_PASSES of them


def full_matrices(bands: Tensor, size: int) -> Tensor:
    """The blur matrices (M, S, S) that small ones stand for."""
    side = bands.shape[-1]
    pixel = torch.arange(size, device=bands.device)
    shift = (pixel - side // 2).clamp(0, size - side)  # (S,)
    column = pixel - shift[:, None]  # (S, S) of the small matrix
    inside = (column >= 0) & (column < side)
    return bands[:, (pixel - shift)[:, None], column.clamp(0, side - 1)] * inside


def _box_weights(sigma: Tensor, reach: int) -> Tensor:
    """Boxes of fractional width, (M, 2 * reach + 1), that add up to anything but 0."""
    # Variances of passes add up. Whole pixels come as near as they can, partial ones at either end
    # make up the rest.
    variance = sigma.square() / _BOX_PASSES  # (M, 1)
    whole = torch.floor((torch.sqrt(12 * variance + 1) - 1) / 2)
    partial = (2 * whole + 1) * (variance - whole * (whole + 1) / 3)
    partial = partial / (2 * ((whole + 1).square() - variance))
    offsets = torch.arange(-reach, reach + 1, device=sigma.device).abs()
    return torch.where(offsets <= whole, 1.0, torch.where(offsets == whole + 1, partial, 0.0))


def _with_repeated_edges(weights: Tensor, side: int) -> Tensor:
    """Matrices (M, side, side) that apply ``weights`` (M, 2r + 1), made to add up to 1."""
    reach = weights.shape[1] // 2
    sums = torch.nn.functional.pad(weights / weights.sum(dim=1, keepdim=True), (1, 0)).cumsum(dim=1)
    pixel = torch.arange(side, device=weights.device)
    # A column collects the weights of all offsets that end on its pixel: one in the middle,
    # and at either end of the axis also those that would end beyond it.
    last = (pixel - pixel[:, None]).masked_fill(pixel == side - 1, reach)  # (side, side)
    before = (pixel - pixel[:, None] - 1).masked_fill(pixel == 0, -reach - 1)
    return (
        sums[:, (last + reach + 1).clamp(0, 2 * reach + 1)]
        - (sums[:, (before + reach + 1).clamp(0, 2 * reach + 1)])
    )
