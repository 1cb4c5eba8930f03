"""Blurs as matrices: a blurred view is ``rows @ view @ columns.T``.

Pillow's blur is three passes with a box of fractional width, each repeating the
edge pixels of the pass before. Written as a matrix over the pixels of one axis,
the three passes are a third power, borders included, and a true Gaussian is just
another matrix. Both are bands: away from the borders every row is the same
kernel, shifted.

Dimensions: C channels, a view is h x w pixels, S pixels along one axis.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clove_ssl.config.views import BlurKernel

_BOX_PASSES = 3
_BLOCK = 32  # rows of the band that are multiplied at once
_UNCUT = 128  # pixels up to which cutting an axis into blocks does not pay


def blur(pixels: Tensor, sigma: float, kernel: BlurKernel) -> Tensor:
    """Blur (C, h, w) float pixels; edge pixels repeat beyond the border."""
    reach = blur_reach(sigma, kernel)
    h, w = pixels.shape[1:]
    rows = torch.from_numpy(blur_matrix(sigma, h, kernel=kernel))
    columns = rows if w == h else torch.from_numpy(blur_matrix(sigma, w, kernel=kernel))
    down = torch.empty_like(pixels)
    for out, used in _blocks(h, reach):
        torch.matmul(rows[out, used], pixels[:, used], out=down[:, out])
    across = torch.empty_like(pixels)
    for out, used in _blocks(w, reach):
        torch.matmul(down[..., used], columns[out, used].T, out=across[..., out])
    return across


def blur_reach(sigma: float, kernel: BlurKernel) -> int:
    """How many pixels away a pixel still counts."""
    if kernel == "gaussian":
        return max(1, math.ceil(4 * sigma))
    return _BOX_PASSES * (_whole_pixels(sigma) + 1)


def blur_matrix(sigma: float, size: int, *, kernel: BlurKernel) -> NDArray[np.float32]:
    """The blur of one axis as a matrix (S, S) of bands whose rows sum to 1."""
    reach = blur_reach(sigma, kernel)
    # All rows that differ occur in a small matrix already: the borders and one row between.
    small = _small_matrix(sigma, min(size, 4 * reach + 1), kernel=kernel)
    if len(small) == size:
        return small
    matrix = np.zeros((size, size), dtype=np.float32)
    inner = size - 2 * reach
    # Rows one pixel longer than the matrix's turn its diagonals into columns.
    band = matrix.reshape(-1)[reach * size :][: inner * (size + 1)].reshape(inner, size + 1)
    band[:, : 2 * reach + 1] = small[2 * reach, reach : 3 * reach + 1]
    matrix[:reach, : 2 * reach] = small[:reach, : 2 * reach]
    matrix[-reach:, -2 * reach :] = small[-reach:, -2 * reach :]
    return matrix


def _small_matrix(sigma: float, size: int, *, kernel: BlurKernel) -> NDArray[np.float32]:
    if kernel == "gaussian":
        offsets = np.arange(-blur_reach(sigma, kernel), blur_reach(sigma, kernel) + 1)
        weights = np.exp(-0.5 * (offsets / sigma) ** 2)
        return _with_repeated_edges(weights / weights.sum(), size).astype(np.float32)
    box = _with_repeated_edges(_box_weights(sigma), size)
    return (box @ box @ box).astype(np.float32)  # _BOX_PASSES of them


def _box_weights(sigma: float) -> NDArray[np.float64]:
    """A box of fractional width: whole pixels in the middle, one partial pixel at either end."""
    variance = sigma**2 / _BOX_PASSES
    whole = _whole_pixels(sigma)
    # The partial pixels are chosen such that the box has exactly this variance.
    partial = (2 * whole + 1) * (variance - whole * (whole + 1) / 3)
    partial /= 2 * ((whole + 1) ** 2 - variance)
    weights: NDArray[np.float64] = np.ones(2 * whole + 3)
    weights[[0, -1]] = partial
    weights /= weights.sum()
    return weights


def _whole_pixels(sigma: float) -> int:
    """Pixels on each side of the middle that count in full."""
    length = math.sqrt(12 * sigma**2 / _BOX_PASSES + 1)  # of a continuous box
    return math.floor((length - 1) / 2)


def _with_repeated_edges(weights: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """The matrix (S, S) that applies ``weights`` around every pixel."""
    reach = len(weights) // 2
    sources = np.arange(size)[:, None] + np.arange(-reach, reach + 1)  # (S, taps)
    pixels = np.eye(size)[np.clip(sources, 0, size - 1)]  # (S, taps, S)
    matrix: NDArray[np.float64] = weights @ pixels
    return matrix


def _blocks(size: int, reach: int) -> list[tuple[slice, slice]]:
    """Pixels that are computed together, and the pixels they are computed from."""
    if size <= _UNCUT:
        return [(slice(size), slice(size))]
    # A band is mostly zeros: a block of rows is multiplied only with the pixels it can reach.
    return [
        (
            slice(start, min(start + _BLOCK, size)),
            slice(max(start - reach, 0), min(start + _BLOCK + reach, size)),
        )
        for start in range(0, size, _BLOCK)
    ]
