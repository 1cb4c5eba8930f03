"""Convolutions whose sizes come from a ladder, so that a GPU plans few of them.

cuDNN makes a plan for every new shape of a convolution, which takes the host some milliseconds,
and training a detector has new shapes all the time: as many regions as happen to show objects, a
canvas as large as the largest image. Here a map is filled up with zeros to the next rung of the
ladder, and the result is cut back to what the convolution would have given by itself.

Nothing else sees the zeros, so the numbers are the same: rows of a batch do not meet in a
convolution, and beyond the right and the lower border it reads zeros anyway. What would count them,
such as a batch norm, comes after the cut. For the same reason a whole batch is *not* filled up
once, before the network: batch norms would count the new cells, and even without norms a bias
makes the second layer see something else than zeros beyond the border.

Dimensions: B maps, C channels, H x W cells.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clove_ssl.layers.layouts import every_nth, first_maps, upper_left

ROWS_PER_OCTAVE = 4
"""Rungs between a number of maps and its double: at most a quarter is added, an eighth on
average."""
FEW_ROWS = 32
"""So many maps and fewer stay as they are: they are the images of a batch, always as many."""
SIDES_PER_OCTAVE = 16
"""Rungs between a side and its double; with fewer a large canvas would grow by too much."""


def rung(size: int, *, per_octave: int) -> int:
    """The lowest rung that is not below ``size``; small sizes are rungs themselves."""
    # The largest power of two up to the size, in equal steps: rungs grow with the size.
    step = max((1 << max(size.bit_length() - 1, 0)) // per_octave, 1)
    return -(-size // step) * step


def plans_by_size(maps: Tensor) -> bool:
    """Whether convolutions of such maps are planned for each size."""
    return maps.is_cuda


def in_half_precision(maps: Tensor) -> bool:
    """Whether a layer works on such maps with half as many bits; products in fp32 would be slow."""
    return maps.dtype.itemsize == 2 or torch.is_autocast_enabled(maps.device.type)


def by_rows(convolve: Callable[[Tensor], Tensor], maps: Tensor) -> Tensor:
    """Convolve maps (B, C, H, W), as many as the ladder has, and give the results of B of them."""
    if not plans_by_size(maps):  # asked first, since an exported graph may not look at sizes
        return convolve(maps)
    count = len(maps)
    more = rung(count, per_octave=ROWS_PER_OCTAVE) - count
    if more == 0 or count <= FEW_ROWS:
        return convolve(maps)
    # Behind the others, so the rows that count keep their numbers.
    return first_maps(convolve(F.pad(maps, (0, 0, 0, 0, 0, 0, 0, more))), count)


def is_product(layer: nn.Conv2d) -> bool:
    """Whether a convolution multiplies every cell on its own."""
    shape = (layer.kernel_size, layer.padding, layer.groups)
    return shape == ((1, 1), (0, 0), 1)


def multiply_cells(layer: nn.Conv2d, maps: Tensor) -> Tensor:
    """Such a convolution as a product of matrices, which is planned in no time for any size."""
    cells = every_nth(maps, layer.stride).permute(0, 2, 3, 1)  # (B, h, w, C)
    return F.linear(cells, layer.weight.flatten(1), layer.bias).permute(0, 3, 1, 2)


class LadderConv2d(nn.Conv2d):
    """A convolution with zeros around its input, which takes all its sizes from the ladder."""

    def forward(self, maps: Tensor) -> Tensor:
        """(B, C, H, W) -> what the plain convolution gives."""
        if not plans_by_size(maps):
            return super().forward(maps)
        if is_product(self) and in_half_precision(maps):
            return multiply_cells(self, maps)
        height, width = maps.shape[2:]
        more = [rung(side, per_octave=SIDES_PER_OCTAVE) - side for side in (width, height)]
        if any(more):
            maps = F.pad(maps, (0, more[0], 0, more[1]))
        result = by_rows(super().forward, maps)
        if not any(more):
            return result
        # Without gaps between their rows, on which batch norms are slow.
        return upper_left(result, self._side_after(height, 0), self._side_after(width, 1))

    def _side_after(self, side: int, axis: int) -> int:
        """The length of a side after the convolution."""
        padding = self.padding[axis]
        assert isinstance(padding, int)
        reach = self.dilation[axis] * (self.kernel_size[axis] - 1)
        return (side + 2 * padding - reach - 1) // self.stride[axis] + 1


def put_on_ladder(network: nn.Module) -> None:
    """Let the plain convolutions of a network take their sizes from the ladder."""
    for layer in network.modules():
        is_plain = type(layer) is nn.Conv2d and not isinstance(layer.padding, str)
        if is_plain and layer.padding_mode == "zeros":
            # The same object: names, parameters and whoever holds it stay as they are.
            layer.__class__ = LadderConv2d
