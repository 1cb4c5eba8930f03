"""From positions in the image order to whole micro-batches, in worker processes.

What a batch holds is a pure function of (seed, position): neither the number
of workers nor the moment a run was resumed changes a pixel.

A file that cannot be read is replaced by the next readable one of the source,
and reported with the batch; nobody is left out silently.

Two readers share this. ``RenderedViews`` does everything on the CPU and sends
pixels of views. ``EncodedImages`` leaves the work to a GPU: it sends JPEG files
as they are, other images decoded, and the random numbers of their views.

Photos that a store keeps (``kept_photos.py``) are not read again; that changes no pixel.

Dimensions: B images of a micro-batch, V views per image.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
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
from clove_ssl.data.decode import DecodeError, decode
from clove_ssl.data.jpeg_header import JpegHeader, read_header
from clove_ssl.data.kept_photos import PhotoStore, PhotoTable
from clove_ssl.data.labels.classified import labels_at
from clove_ssl.data.order import Draws, many_view_uniforms
from clove_ssl.data.sources import BadFile, ImageSource, forgiven_files
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
            # The next file, not a random one: what replaces a bad file must not depend on who reads
            # it.
            position = (index + offset) % len(self.source)
            try:
                return Found(position, make(self.source.read(position)))
            except (DecodeError, OSError) as error:
                bad.append(BadFile(self.source.name(position), str(error)))
            # A header may promise any size; one such file must not end a run of days.
            except MemoryError:
                bad.append(BadFile(self.source.name(position), "there is no memory for it"))
        return Found(index, blank)

    def decoded(self, data: bytes) -> Tensor:
        """The pixels of a file, uint8 (3, H, W)."""
        return decode(data, max_pixels=self.max_pixels)

    def draw(self, draws: Draws, sizes: npt.ArrayLike) -> ViewParameters:
        """The parameters of all views, for images of these heights and widths, (B, 2)."""
        rows = rows_of_numbers(self.specs)
        uniforms = many_view_uniforms(self._seed, draws, rows * UNIFORMS_PER_VIEW)
        heights, widths = np.asarray(sizes, dtype=np.int64).T
        return draw_views(uniforms.reshape(len(uniforms), rows, -1), heights, widths, self.specs)


BLANK = torch.zeros(3, 8, 8, dtype=torch.uint8)
_NOTHING = torch.empty(0, dtype=torch.uint8)


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
    is_for_one_draw: bool = False  # whether other views of it may want another reduction


class RenderedViews(BatchReader[RenderedBatch]):
    """Reads, decodes and renders on the CPU.

    Args:
        store: Keeps what is decoded at full size, in memory of the host.
    """

    def __init__(
        self,
        source: ImageSource,
        specs: tuple[ViewSpec, ...],
        config: DataConfig,
        *,
        seed: int,
        store: PhotoStore | None = None,
    ) -> None:
        super().__init__(source, specs, config, seed=seed)
        self._store = store

    def __getitem__(self, draws: Draws) -> RenderedBatch:
        bad: list[BadFile] = []
        found = [self._find(draw, bad) for draw in _one_by_one(draws)]
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

    def _find(self, draw: Draws, bad: list[BadFile]) -> Found[Picture]:
        """The picture of one image, kept from before or read."""
        index, store = int(draw.indices[0]), self._store
        if store is not None and store.table.has(draw.indices)[0]:
            position = int(store.table.positions(draw.indices)[0])
            return Found(position, _whole(store.image(index)))
        found = self.readable(index, bad, partial(self._picture, draw), blank=_whole(BLANK))
        # What was decoded for one draw may lack the detail that another draw needs.
        if store is not None and not found.image.is_for_one_draw:
            store.keep(draw.indices, [found.image.pixels], np.array([found.position]))
        return found

    def _picture(self, draw: Draws, data: bytes) -> Picture:
        """A file, decoded with as little detail as the views of this draw can do with."""
        header = read_header(data)
        if header is None or not header.is_ordinary:
            return _whole(self.decoded(data))
        size = (header.height, header.width)
        if not may_be_reduced(*size, self.specs):
            return _whole(self.decoded(data))
        # Parameters are drawn for the full size, and once more below for the batch: the same
        # numbers both times, as they follow from seed, epoch and image.
        reduction = possible_reduction(self.draw(draw, [size]), self.specs)
        pixels = decode(data, max_pixels=self.max_pixels, reduce=reduction)
        return Picture(pixels, *size, reduction, is_for_one_draw=True)


def may_be_reduced(height: int, width: int, specs: tuple[ViewSpec, ...]) -> bool:
    """Whether half the size of a photo could be enough for every view, so that it is worth a look.

    Such a JPEG is decoded on the CPU with as little detail as each draw of its views can do with.
    """
    return min(height, width) >= 2 * max(spec.size for spec in specs)


def _whole(pixels: Tensor) -> Picture:
    return Picture(pixels, *pixels.shape[1:])


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
    is_kept: npt.NDArray[np.bool_]  # (B,) images that a store has; they are no part of the payload
    parameters: ViewParameters  # (B, V), with the sizes of the images
    draws: Draws
    positions: Integers  # (B,) where in the source the images were found
    labels: Integers | None  # (B,) classes of the images, where the source knows them
    bad: tuple[BadFile, ...]

    def pin_memory(self) -> EncodedBatch:
        """The same batch in page-locked memory; the data loader calls this by its name."""
        return replace(self, payload=self.payload.pin_memory()) if len(self.payload) else self

    def image(self, number: int) -> Tensor:
        """The bytes of one image."""
        return self.payload[int(self.offsets[number]) : int(self.offsets[number + 1])]


class EncodedImages(BatchReader[EncodedBatch]):
    """Reads files, and decodes only what a GPU should not.

    Args:
        keeps_jpegs: Leave ordinary JPEG files as they are; otherwise every image is decoded here.
        kept: Images that need not be read.
    """

    def __init__(
        self,
        source: ImageSource,
        specs: tuple[ViewSpec, ...],
        config: DataConfig,
        *,
        seed: int,
        keeps_jpegs: bool,
        kept: PhotoTable | None = None,
    ) -> None:
        super().__init__(source, specs, config, seed=seed)
        self._keeps_jpegs = keeps_jpegs
        self._kept = kept

    def __getitem__(self, draws: Draws) -> EncodedBatch:
        return self.batch(draws)

    def decoded_batch(self, draws: Draws) -> EncodedBatch:
        """The same batch with every image that is read decoded here."""
        return self.batch(draws, refused=range(len(draws.indices)))

    def batch(self, draws: Draws, *, refused: Collection[int] = ()) -> EncodedBatch:
        """A batch in which the images that the GPU ``refused`` are decoded here."""
        bad: list[BadFile] = []
        sizes, positions, is_kept = self._known(draws.indices)
        lengths, is_jpeg = np.zeros(len(is_kept), np.int64), np.zeros(len(is_kept), np.bool_)
        payloads = [_NOTHING]
        for number in np.flatnonzero(~is_kept).tolist():
            decodes = number in refused or not self._keeps_jpegs
            make = self._decoded if decodes else self._encoded
            index = int(draws.indices[number])
            position, image = self.readable(index, bad, make, blank=_pixels(BLANK))
            payloads.append(image.payload)
            lengths[number], is_jpeg[number] = len(image.payload), image.is_jpeg
            sizes[number], positions[number] = (image.height, image.width), position
        return EncodedBatch(
            payload=torch.cat(payloads),
            offsets=np.concatenate([[0], np.cumsum(lengths)]),
            is_jpeg=is_jpeg,
            is_kept=is_kept,
            parameters=self.draw(draws, sizes),
            draws=draws,
            positions=positions,
            labels=labels_at(self.source, positions.tolist()),
            bad=tuple(bad),
        )

    def _known(self, indices: Integers) -> tuple[Integers, Integers, npt.NDArray[np.bool_]]:
        """Sizes and positions of the images that are kept, and which ones that are."""
        if self._kept is None:
            count = len(indices)
            return np.zeros((count, 2), np.int64), indices.copy(), np.zeros(count, np.bool_)
        is_kept = self._kept.has(indices)  # first, since another process may be keeping right now
        return self._kept.sizes(indices), self._kept.positions(indices), is_kept

    def _decoded(self, data: bytes) -> EncodedImage:
        return _pixels(self.decoded(data))

    def _encoded(self, data: bytes) -> EncodedImage:
        header = read_header(data)
        # Whatever a GPU decoder might read differently goes to the CPU: a run looks the same on
        # both.
        if header is None or not header.is_ordinary or self._is_too_large(header):
            return self._decoded(data)
        # Copied once into memory that can be written, which torch asks for.
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
