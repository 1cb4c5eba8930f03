"""From positions in the image order to whole micro-batches, in worker processes.

What a batch holds is a pure function of (seed, position): neither the number
of workers nor the moment a run was resumed changes a pixel.

A file that cannot be read is replaced by the next readable one of the source,
and reported with the batch; nobody is left out silently.

Two readers share this. ``RenderedViews`` does everything on the CPU and sends
pixels of views. ``EncodedImages`` leaves the work to a GPU: it sends JPEG files
as they are, other images decoded, and the random numbers of their views.

Dimensions: B images of a micro-batch, V views per image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from clove_ssl.config.pretraining import DataConfig
from clove_ssl.config.views import ViewSpec
from clove_ssl.data.bad_files import BadFile, forgiven_files
from clove_ssl.data.decode import DecodeError, decode
from clove_ssl.data.jpeg_header import JpegHeader, read_header
from clove_ssl.data.labels.classified import labels_at
from clove_ssl.data.order import Draws, view_uniforms
from clove_ssl.data.sources import ImageSource
from clove_ssl.views.batch import View, ViewBatch
from clove_ssl.views.draw.crops import UNIFORMS_PER_VIEW
from clove_ssl.views.draw.parameters import ViewParameters, draw_views
from clove_ssl.views.draw.relations import rows_of_numbers
from clove_ssl.views.pasting import foreground_boxes, paste_views
from clove_ssl.views.render.cpu import possible_reduction, render_views

T = TypeVar("T")
Batch = TypeVar("Batch")
Integers = npt.NDArray[np.int64]


class Found(NamedTuple, Generic[T]):
    """An image that could be read, and its number in the source."""

    position: int
    image: T


class BatchReader(Dataset[Batch], Generic[Batch]):
    """Finds the images of a micro-batch and draws the parameters of their views."""

    def __init__(
        self, source: ImageSource, specs: tuple[ViewSpec, ...], config: DataConfig, *, seed: int
    ) -> None:
        self.source = source
        self.specs = specs
        self.max_pixels = config.max_pixels
        self._attempts = min(len(source), forgiven_files(config, len(source)) + 1)
        self._seed = seed

    def readable(
        self, index: int, bad: list[BadFile], make: Callable[[bytes], T], *, blank: T
    ) -> Found[T]:
        """What ``make`` gives for the file at ``index``, or the next one it can work with.

        When more files in a row fail than a run forgives, the run will end on their report, and
        ``blank`` stands in until then.
        """
        for offset in range(self._attempts):
            position = (index + offset) % len(self.source)
            try:
                return Found(position, make(self.source.read(position)))
            except (DecodeError, OSError) as error:
                bad.append(BadFile(self.source.name(position), str(error)))
            except MemoryError:
                bad.append(BadFile(self.source.name(position), "there is no memory for it"))
        return Found(index, blank)

    def decoded(self, data: bytes) -> Tensor:
        """The pixels of a file, uint8 (3, H, W)."""
        return decode(data, max_pixels=self.max_pixels)

    def draw(self, draws: Draws, sizes: Sequence[tuple[int, int]]) -> ViewParameters:
        """The parameters of all views, for images of these heights and widths."""
        uniforms = np.stack(
            [self._uniforms(int(epoch), int(index)) for epoch, index in zip(*draws, strict=True)]
        )  # (B, R, K)
        heights, widths = np.array(sizes, dtype=np.int64).T
        return draw_views(uniforms, heights, widths, self.specs)

    def _uniforms(self, epoch: int, index: int) -> npt.NDArray[np.float64]:
        rows = rows_of_numbers(self.specs)
        return view_uniforms(self._seed, epoch, index, rows * UNIFORMS_PER_VIEW).reshape(rows, -1)


BLANK = torch.zeros(3, 8, 8, dtype=torch.uint8)


@dataclass(frozen=True)
class RenderedBatch:
    """Pixels of all views, and where they lie."""

    pixels: tuple[Tensor, ...]  # V x uint8 (B, 3, h, w)
    parameters: ViewParameters  # (B, V)
    index: Integers  # (B,)
    labels: Integers | None  # (B,) classes of the images, where the source knows them
    bad: tuple[BadFile, ...]

    def pin_memory(self) -> RenderedBatch:
        """The same batch in page-locked memory; the data loader calls this by its name."""
        return replace(self, pixels=tuple(pixels.pin_memory() for pixels in self.pixels))


class Picture(NamedTuple):
    """A decoded image, perhaps smaller than its file says, with the size the file says."""

    pixels: Tensor  # uint8 (3, H / reduction, W / reduction), rounded up
    height: int
    width: int
    reduction: int = 1


class RenderedViews(BatchReader[RenderedBatch]):
    """Reads, decodes and renders on the CPU."""

    def __getitem__(self, draws: Draws) -> RenderedBatch:
        bad: list[BadFile] = []
        blank = Picture(BLANK, *BLANK.shape[1:])
        found = [
            self.readable(int(index), bad, partial(self._picture, draw), blank=blank)
            for index, draw in zip(draws.indices, _one_by_one(draws), strict=True)
        ]
        parameters = self.draw(draws, [(each.image.height, each.image.width) for each in found])
        rendered = [
            render_views(
                each.image.pixels,
                parameters.image(number),
                self.specs,
                reduction=each.image.reduction,
            )
            for number, each in enumerate(found)
        ]
        pixels = tuple(torch.stack(view) for view in zip(*rendered, strict=True))
        pixels = paste_views(pixels, parameters, self.specs)
        labels = labels_at(self.source, [each.position for each in found])
        return RenderedBatch(pixels, parameters, draws.indices, labels, tuple(bad))

    def _picture(self, draw: Draws, data: bytes) -> Picture:
        """A file, decoded with as little detail as the views of this draw can do with."""
        header = read_header(data)
        if header is None or not header.is_ordinary or not self._is_large(header):
            pixels = self.decoded(data)
            return Picture(pixels, *pixels.shape[1:])
        size = (header.height, header.width)
        reduction = possible_reduction(self.draw(draw, [size]), self.specs)
        pixels = decode(data, max_pixels=self.max_pixels, reduce=reduction)
        return Picture(pixels, *size, reduction)

    def _is_large(self, header: JpegHeader) -> bool:
        """Whether it is worth a look: half the size could be enough for every view."""
        return min(header.height, header.width) >= 2 * max(spec.size for spec in self.specs)


def _one_by_one(draws: Draws) -> list[Draws]:
    """Every image of a batch as a batch of its own."""
    singles = (np.split(column, len(column)) for column in draws)
    return [Draws(*row) for row in zip(*singles, strict=True)]


@dataclass(frozen=True)
class EncodedImage:
    """A JPEG file that every decoder reads alike, or the pixels of any other image."""

    payload: Tensor  # (bytes,) uint8: the file, or pixels of (3, H, W)
    height: int
    width: int
    is_jpeg: bool


@dataclass(frozen=True)
class EncodedBatch:
    """Images for a GPU to decode and render; one tensor, so that one copy moves them all."""

    payload: Tensor  # (bytes,) uint8, image after image
    offsets: Integers  # (B + 1,)
    is_jpeg: npt.NDArray[np.bool_]  # (B,)
    parameters: ViewParameters  # (B, V), with the sizes of the images
    draws: Draws
    labels: Integers | None  # (B,) classes of the images, where the source knows them
    bad: tuple[BadFile, ...]

    def pin_memory(self) -> EncodedBatch:
        """The same batch in page-locked memory; the data loader calls this by its name."""
        return replace(self, payload=self.payload.pin_memory())

    def image(self, number: int) -> Tensor:
        """The bytes of one image."""
        return self.payload[int(self.offsets[number]) : int(self.offsets[number + 1])]


class EncodedImages(BatchReader[EncodedBatch]):
    """Reads files, and decodes only what a GPU should not.

    Args:
        keeps_jpegs: Leave ordinary JPEG files as they are; otherwise every image is decoded here.
    """

    def __init__(
        self,
        source: ImageSource,
        specs: tuple[ViewSpec, ...],
        config: DataConfig,
        *,
        seed: int,
        keeps_jpegs: bool,
    ) -> None:
        super().__init__(source, specs, config, seed=seed)
        self._keeps_jpegs = keeps_jpegs

    def __getitem__(self, draws: Draws) -> EncodedBatch:
        return self._batch(draws, self._encoded) if self._keeps_jpegs else self.decoded_batch(draws)

    def decoded_batch(self, draws: Draws) -> EncodedBatch:
        """The same batch with every image decoded here, for when the GPU gave up on one."""
        return self._batch(draws, lambda data: _pixels(self.decoded(data)))

    def _batch(self, draws: Draws, make: Callable[[bytes], EncodedImage]) -> EncodedBatch:
        bad: list[BadFile] = []
        blank = _pixels(BLANK)
        found = [self.readable(int(index), bad, make, blank=blank) for index in draws.indices]
        images = [each.image for each in found]
        return EncodedBatch(
            payload=torch.cat([image.payload for image in images]),
            offsets=np.cumsum([0, *(len(image.payload) for image in images)]),
            is_jpeg=np.array([image.is_jpeg for image in images]),
            parameters=self.draw(draws, [(image.height, image.width) for image in images]),
            draws=draws,
            labels=labels_at(self.source, [each.position for each in found]),
            bad=tuple(bad),
        )

    def _encoded(self, data: bytes) -> EncodedImage:
        header = read_header(data)
        if header is None or not header.is_ordinary or self._is_too_large(header):
            return _pixels(self.decoded(data))
        payload = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return EncodedImage(payload, header.height, header.width, is_jpeg=True)

    def _is_too_large(self, header: JpegHeader) -> bool:
        """Whether the CPU decoder should see the file, and refuse it in its own words."""
        return not 0 < header.height * header.width <= self.max_pixels


def _pixels(image: Tensor) -> EncodedImage:
    return EncodedImage(image.flatten(), image.shape[1], image.shape[2], is_jpeg=False)


def view_batch(batch: RenderedBatch, specs: tuple[ViewSpec, ...]) -> ViewBatch:
    """A rendered batch as methods want it, still as uint8 on the CPU."""
    views = tuple(
        View(
            pixels,
            batch.parameters.geometry(number),
            spec.role,
            foreground_boxes(batch.parameters, number, spec),
        )
        for number, (pixels, spec) in enumerate(zip(batch.pixels, specs, strict=True))
    )
    labels = None if batch.labels is None else torch.from_numpy(batch.labels)
    return ViewBatch(views, torch.from_numpy(batch.index), labels)
