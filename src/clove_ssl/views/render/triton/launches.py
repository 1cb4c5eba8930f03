"""Groups of views by Triton kernels: buffers and launches.

The host only does arithmetic on arrays with one row per view. Everything it has to
say about a batch reaches the device in one copy, and nothing is ever read back.

Dimensions: N images; a group has M views of size S x S, B of them blurred.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton
from torch import Tensor

from clove_ssl.views.render.blur_bands import band_side, blur_bands, blur_reaches
from clove_ssl.views.render.groups import ViewGroup
from clove_ssl.views.render.packing import PackedImages, send_together
from clove_ssl.views.render.triton import kernels
from clove_ssl.views.render.triton.blur_weights import blur_weights
from clove_ssl.views.render.triton.tables import KernelTables, kernel_tables, middle_elements

# Rows and columns of a tile. Weights change along one axis only, and a thread computes each
# weight once for all its pixels, so tiles are long along the other axis.
_ACROSS = {"ROWS": 16, "COLUMNS": 32}
_DOWN = {"ROWS": 4, "COLUMNS": 128}
_PIXELS = 512
# Of blur matrices that one program makes: products need 16 rows at least, and registers hold 64.
_SMALLEST_SIDE, _LARGEST_SIDE = 16, 64
_OPTIONS = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": True}


def render_groups(
    images: PackedImages, groups: Sequence[ViewGroup], *, dtype: torch.dtype, channels_last: bool
) -> list[Tensor]:
    """The normalised views of each group, (M, 3, S, S)."""
    with _current_device(images.buffer.device):
        renderings = plan(images, groups, dtype=dtype, channels_last=channels_last)
        for rendering in renderings:
            for stage in GroupRendering.STAGES:
                getattr(rendering, stage)()
    return [rendering.views for rendering in renderings]


def plan(
    images: PackedImages, groups: Sequence[ViewGroup], *, dtype: torch.dtype, channels_last: bool
) -> list[GroupRendering]:
    """Send the tables of all groups to the device, in one copy, and make room for the views."""
    tables = [kernel_tables(images, group) for group in groups]
    arrays = [array for table in tables for array in table]
    arrived = send_together(arrays, images.buffer.device)
    columns = len(KernelTables._fields)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return [
        GroupRendering(
            images.buffer,
            group,
            arrived[number * columns : (number + 1) * columns],
            dtype=dtype,
            layout=layout,
        )
        for number, group in enumerate(groups)
    ]


class GroupRendering:
    """One group of views on its way through the kernels; the stages are called in order."""

    STAGES = ("resize_across", "resize_down", "colour", "blur_matrices", "blur_across", "blur_down")

    def __init__(
        self,
        source: Tensor,  # all images
        group: ViewGroup,
        tables: Sequence[Tensor],  # the fields of ``KernelTables``
        *,
        dtype: torch.dtype,
        layout: torch.memory_format,
    ) -> None:
        self._source = source
        self._group = group
        self._size = group.size
        self._is_bicubic = group.interpolation == "bicubic"
        self._places, self._counts, self._amounts, self._blurred, self._sigma = tables
        self._reach = int(blur_reaches(group.sigma, group.blur_kernel).max())
        self._side = band_side(group.size, self._reach)
        shape = (len(group), 3, group.size, group.size)
        self.views = torch.empty(shape, dtype=dtype, device=source.device, memory_format=layout)
        self._steps = (3, 1) if layout == torch.channels_last else (1, group.size**2)
        # Whole levels in between are bytes. Behind colour they are not whole any more: float16
        # still resolves an eighth of a level, with half the traffic of float32.
        self._middle = self._room(middle_elements(group), torch.uint8)
        self._resized = self._room(self.views.numel(), torch.uint8)
        self._sums = self._room(len(group) * self._tiles(_DOWN), torch.float32)
        blurred_pixels = 3 * len(self._blurred) * group.size**2
        self._coloured = self._room(blurred_pixels, torch.float16)
        self._across = self._room(blurred_pixels, torch.float16)
        self._bands = self._sigma.new_empty(
            (len(self._blurred), self._side, self._side), dtype=torch.float32
        )

    def resize_across(self) -> None:
        """Source pixels to crops as wide as the views."""
        # Programs for the highest crop are started for all; those below a lower one end at once.
        highest = int(self._group.crop[:, 2].max())
        row_tiles = _tiles_over(highest, _ACROSS["ROWS"])
        _launch(
            kernels.resize_across,
            len(self._group) * row_tiles * _tiles_over(self._size, _ACROSS["COLUMNS"]),
            *(self._source, self._middle, self._places, self._counts, self._amounts),
            *(self._size, row_tiles),
            BICUBIC=self._is_bicubic,
            **_ACROSS,
        )

    def resize_down(self) -> None:
        """Those to views, and the sums of brightness that contrast needs."""
        _launch(
            kernels.resize_down,
            len(self._group) * self._tiles(_DOWN),
            *(self._middle, self._resized, self._sums),
            *(self._places, self._counts, self._amounts, self._size),
            BICUBIC=self._is_bicubic,
            **_DOWN,
        )

    def colour(self) -> None:
        """Jitter and grey; views that are not blurred are complete after this."""
        sums = self._tiles(_DOWN)
        _launch(
            kernels.colour,
            len(self._group) * _tiles_over(self._size**2, _PIXELS),
            *(self._resized, self._sums, self._coloured, self.views),
            *(self._counts, self._amounts, self._size, sums, *self._steps),
            PIXELS=_PIXELS,
            SUMS=triton.next_power_of_2(sums),
        )

    def blur_matrices(self) -> None:
        """The weights of the blurs."""
        kernel = self._group.blur_kernel
        if self._side > _LARGEST_SIDE:  # a blur that reaches further than anybody's augmentation
            bands = blur_bands(self._sigma, self._size, reach=self._reach, kernel=kernel)
            self._bands = bands.contiguous()
            return
        side = max(_SMALLEST_SIDE, triton.next_power_of_2(self._side))
        _launch(
            blur_weights,
            len(self._blurred),
            *(self._bands, self._sigma, self._blurred, self._counts, self._side),
            GAUSSIAN=kernel == "gaussian",
            SIDE=side,
            num_warps=side // 8,  # a product keeps many numbers per thread; more would be spilled
        )

    def blur_across(self) -> None:
        """Blur the rows of the views that are blurred."""
        _launch(
            kernels.blur_across,
            len(self._blurred) * self._tiles(_ACROSS),
            *(self._coloured, self._across, self._bands, self._blurred, self._counts),
            *(self._size, self._side),
            **_ACROSS,
        )

    def blur_down(self) -> None:
        """Blur their columns, which completes them."""
        _launch(
            kernels.blur_down,
            len(self._blurred) * self._tiles(_DOWN),
            *(self._across, self.views, self._bands, self._blurred, self._counts, self._amounts),
            *(self._size, self._side, *self._steps),
            **_DOWN,
        )

    def _tiles(self, tile: dict[str, int]) -> int:
        """Tiles of one view."""
        return _tiles_over(self._size, tile["ROWS"]) * _tiles_over(self._size, tile["COLUMNS"])

    def _room(self, elements: int, dtype: torch.dtype) -> Tensor:
        # The last tile may read beyond the last view, and that memory has to exist.
        return torch.empty(elements + kernels.PADDING, dtype=dtype, device=self._source.device)


def _current_device(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current device; its interpreter needs none."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _launch(kernel: Any, programs: int, *arguments: Tensor | int, **constants: int) -> None:
    if programs:  # of a group in which no view is blurred there are none
        kernel[(programs,)](*arguments, **{**_OPTIONS, **constants})


def _tiles_over(length: int, tile: int) -> int:
    """Tiles that cover a length."""
    return -(-length // tile)
