"""A part of a feature pyramid: fine maps that know what the coarse ones saw.

Dimensions: B images, C channels of a stage, D channels of the pyramid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clove_ssl.layers.fp32 import at_least_fp32
from clove_ssl.methods.shuffling import Shuffling, forward_shuffled


class PartialPyramid(nn.Module):
    """Lateral 1x1 convolutions, sums from coarse to fine, and 3x3 convolutions on some sums.

    The pyramid of detectors (``tasks/rcnn/features.py``) is another one: it hands out all levels
    and one more, may normalise them, and bears the weights of published detectors.

    Args:
        in_channels: Channels of the stages that take part, the finest first.
        out: Channels of every level.
        levels: The stages whose sums come out; those above them only pass theirs on.
    """

    def __init__(self, in_channels: Mapping[str, int], out: int, *, levels: Sequence[str]) -> None:
        super().__init__()
        self.lateral = nn.ModuleDict(
            {stage: nn.Conv2d(channels, out, 1) for stage, channels in in_channels.items()}
        )
        self.output = nn.ModuleDict({level: nn.Conv2d(out, out, 3, padding=1) for level in levels})
        for layer in [*self.lateral.values(), *self.output.values()]:
            assert isinstance(layer, nn.Conv2d)
            assert layer.bias is not None
            nn.init.kaiming_uniform_(layer.weight, a=1)  # no ReLU follows
            nn.init.zeros_(layer.bias)

    def forward(self, maps: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """{stage: (B, C, h, w)} -> {level: (B, D, h, w)}."""
        found: dict[str, Tensor] = {}
        above: Tensor | None = None
        for stage, lateral in reversed(list(self.lateral.items())):
            here: Tensor = lateral(maps[stage])
            if above is not None:
                here = here + F.interpolate(above, size=here.shape[2:], mode="nearest")
            if stage in self.output:
                found[stage] = self.output[stage](here)
            above = here
        return found


def precise_pool(maps: Tensor, boxes: Tensor, *, stride: int) -> Tensor:
    """Mean of (B, C, h, w) maps over boxes in pixels: (B, N, C), in fp32 or better.

    Args:
        maps: Feature maps.
        boxes: (B, N, 4) as x0, y0, x1, y1 with x0 <= x1 and y0 <= y1, or (1, N, 4) for boxes that
            all images share. One without area gives zeros.
        stride: Pixels per cell.
    """
    wide = at_least_fp32(maps)
    x0, y0, x1, y1 = (boxes / stride).unbind(-1)  # 4 x (B, N)
    rows = _shares(y0, y1, maps.shape[2]).to(wide.dtype)  # (B, N, h)
    columns = _shares(x0, x1, maps.shape[3]).to(wide.dtype)  # (B, N, w)
    shares = (rows[..., :, None] * columns[..., None, :]).flatten(2)  # (B, N, h * w)
    with torch.autocast(maps.device.type, enabled=False):  # shares are fractions of cells
        return shares @ wide.flatten(2).mT


def _shares(start: Tensor, end: Tensor, count: int) -> Tensor:
    """Share of each of ``count`` cells in the mean between two places: (B, N, count)."""
    cells = torch.arange(count, dtype=start.dtype, device=start.device)  # (count,)
    integral = _tent_before(end[..., None] - cells) - _tent_before(start[..., None] - cells)
    length = (end - start).clamp(min=torch.finfo(start.dtype).tiny)
    return integral / length[..., None]


def _tent_before(place: Tensor) -> Tensor:
    """Area left of a place under a tent of height 1 that stands from -1 to 1."""
    place = place.clamp(-1, 1)
    return 0.5 + place - place * place.abs() / 2


def forward_parts_shuffled(
    network: Callable[[Tensor], Sequence[Tensor]], images: Tensor, **shuffling: Unpack[Shuffling]
) -> tuple[Tensor, ...]:
    """:func:`forward_shuffled` for several outputs of one type, each (B, ...).

    They travel between processes as one row per image.
    """
    shapes: list[torch.Size] = []

    def as_rows(group: Tensor) -> Tensor:
        parts = network(group)
        shapes[:] = [part.shape[1:] for part in parts]
        return torch.cat([part.flatten(1) for part in parts], dim=1)

    rows = forward_shuffled(as_rows, images, **shuffling)
    parts = torch.split(rows, [shape.numel() for shape in shapes], dim=1)
    return tuple(part.reshape(-1, *shape) for part, shape in zip(parts, shapes, strict=True))
