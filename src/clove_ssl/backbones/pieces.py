"""The pieces of a backbone that are compiled, each on its own.

Blocks of one shape share a compiled graph, so compiling them takes a fraction of
the time that compiling the whole network takes. What stands between rows of blocks,
such as a stem, is one piece each.

A stem gets special treatment: its first convolution sees three channels, for which
no fast kernel exists. Two by two pixels are therefore moved into channels, where the
same sum of the same products is a small convolution over sixteen channels.

Dimensions: B images, H x W pixels, D channels.
"""

from __future__ import annotations

from itertools import groupby
from typing import TypeGuard

import torch.nn.functional as F
from torch import Tensor, nn

STEM_KERNEL = 7
CHANNELS = 16  # three colours of 2 x 2 pixels, and four empty channels to align them


class Chain(nn.Module):
    """Modules one after the other, which belong to another module as well."""

    def __init__(self, modules: list[nn.Module]) -> None:
        super().__init__()
        self.chain = nn.ModuleList(modules)

    def forward(self, images: Tensor) -> Tensor:
        """What the last module makes of ``images``."""
        running = images
        for module in self.chain:
            running = self._step(module, running)
        return running

    def _step(self, module: nn.Module, running: Tensor) -> Tensor:
        if is_stem_convolution(module) and not (running.shape[2] % 2 or running.shape[3] % 2):
            return convolve_by_depth(running, module.weight)
        result: Tensor = module(running)
        return result


def is_stem_convolution(module: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Whether a module is the first convolution of a ResNet: 7 x 7, stride 2, three colours."""
    return (
        isinstance(module, nn.Conv2d)
        and module.in_channels == 3
        and module.kernel_size == (STEM_KERNEL, STEM_KERNEL)
        and (module.stride, module.padding) == ((2, 2), (3, 3))
        and (module.groups, module.dilation, module.bias) == (1, (1, 1), None)
    )


def convolve_by_depth(images: Tensor, weight: Tensor) -> Tensor:
    """A 7 x 7 convolution of stride 2 and padding 3, as one of 4 x 4 and stride 1.

    With a zero in front, the kernel has eight taps: tap k meets pixel 2 i + k - 4 for
    output i. Written as k = 2 a + b, that is row i + a - 2 of the pixels of parity b.

    Args:
        images: (B, 3, H, W) with even sides.
        weight: (D, 3, 7, 7).
    """
    taps = F.pixel_unshuffle(F.pad(weight, (1, 0, 1, 0)), 2)  # (D, 12, 4, 4)
    pixels = F.pixel_unshuffle(images, 2)  # (B, 12, H / 2, W / 2)
    spare = CHANNELS - pixels.shape[1]
    taps = F.pad(taps, (0, 0, 0, 0, 0, spare))
    pixels = F.pad(pixels, (2, 1, 2, 1, 0, spare))
    return F.conv2d(pixels, taps)  # (B, D, H / 2, W / 2)


def compiled_steps(modules: list[nn.Module], backend: str) -> list[nn.Module]:
    """Rows of blocks, compiled block by block, and everything else in as few pieces as can be."""
    steps: list[nn.Module] = []
    for is_row, group in groupby(modules, _is_row_of_blocks):
        members = list(group)
        steps += members if is_row else [Chain(members)]
        pieces = [block for row in members for block in row.children()] if is_row else steps[-1:]
        for piece in pieces:
            piece.compile(dynamic=False, backend=backend)
    return steps


def _is_row_of_blocks(module: nn.Module) -> bool:
    """Whether a module runs blocks, which have layers of their own, one after the other."""
    blocks = list(module.children())
    return isinstance(module, nn.Sequential) and all(any(b.children()) for b in blocks)
