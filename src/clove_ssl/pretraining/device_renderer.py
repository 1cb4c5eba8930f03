"""Views of a batch, rendered on the device, on a stream of its own where that is a GPU.

Photos come there first: decoded on the device, copied from the host, or kept from before.

Dimensions: B photos of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from clove_ssl.data.decode import BatchDecoder
from clove_ssl.data.kept_photos import PhotoStore
from clove_ssl.data.reading import EncodedBatch, EncodedImages
from clove_ssl.data.sources import BadFile
from clove_ssl.layers.transfers import map_tensors, tensors_of
from clove_ssl.views.batch import View, ViewBatch
from clove_ssl.views.draw.crops import Integers
from clove_ssl.views.draw.parameters import ViewParameters
from clove_ssl.views.pasting import foreground_boxes, paste_views
from clove_ssl.views.render.gpu import render_batch
from clove_ssl.views.render.packing import PackedImages, send_together

Decode = Callable[[list[Tensor]], list[Tensor]]
"""JPEG files as uint8 (bytes,) to pictures as uint8 (3, H, W) on the device."""


class Ready:
    """A rendered batch whose kernels, on a GPU, may still be running."""

    def __init__(
        self, batch: ViewBatch, bad: tuple[BadFile, ...], finished: torch.cuda.Event | None
    ) -> None:
        self.bad = bad
        self._batch = batch
        self._finished = finished

    def take(self) -> ViewBatch:
        """The batch for the current stream, which waits for it; the host does not."""
        if self._finished is None:
            return self._batch
        stream = torch.cuda.current_stream()
        stream.wait_event(self._finished)
        for tensor in tensors_of(self._batch):
            tensor.record_stream(stream)
        return self._batch


class DeviceRenderer:
    """Turns encoded batches into views; on a GPU, on a stream of its own."""

    def __init__(
        self,
        reader: EncodedImages,
        device: torch.device,
        *,
        dtype: torch.dtype,
        decoder: BatchDecoder | None,
        store: PhotoStore | None = None,
    ) -> None:
        self._specs = reader.specs
        self._device = device
        self._dtype = dtype
        self._on_gpu = device.type == "cuda"
        if self._on_gpu:
            self.stream, self.decoding_stream = (torch.cuda.Stream(device) for _ in range(2))  # type: ignore[no-untyped-call]
            # The memory of a store may have been somebody's whose kernels still run.
            self.stream.wait_stream(torch.cuda.current_stream(device))
        decode = None if decoder is None else partial(self._decode_jpegs, decoder=decoder)
        self._photos = DevicePhotos(reader, device, decode=decode, store=store)

    def render(self, batch: EncodedBatch) -> Ready:
        """Queue the work for a batch."""
        if not self._on_gpu:
            return Ready(*self._rendered(batch), finished=None)
        with torch.cuda.device(self._device), torch.cuda.stream(self.stream):
            views, bad = self._rendered(batch)
            finished = torch.cuda.Event()  # type: ignore[no-untyped-call]
            finished.record(self.stream)
        return Ready(views, bad, finished)

    def _rendered(self, batch: EncodedBatch) -> tuple[ViewBatch, tuple[BadFile, ...]]:
        batch, images = self._photos.of(batch)
        pixels = render_batch(images, batch.parameters, self._specs, dtype=self._dtype)
        pixels = paste_views(pixels, batch.parameters, self._specs)
        views = tuple(
            self._view(number, rendered, batch.parameters) for number, rendered in enumerate(pixels)
        )
        index = torch.from_numpy(batch.draws.indices)
        labels = None if batch.labels is None else torch.from_numpy(batch.labels)
        return _sent(ViewBatch(views, index, labels), self._device), batch.bad

    def _view(self, number: int, pixels: Tensor, parameters: ViewParameters) -> View:
        spec = self._specs[number]
        boxes = foreground_boxes(parameters, number, spec)
        return View(pixels, parameters.geometry(number), spec.role, boxes)

    def _decode_jpegs(self, files: list[Tensor], decoder: BatchDecoder) -> list[Tensor]:
        """Pictures for the renderer's stream.

        nvJPEG writes at once, on a stream that nobody else knows, so it must never get memory that
        queued kernels still use. The pool of a stream that does nothing else has no such memory.
        """
        if not self._on_gpu:
            return decoder(files, self._device)
        with torch.cuda.stream(self.decoding_stream):
            pictures = decoder(files, self._device)
        self.stream.wait_stream(self.decoding_stream)
        for picture in pictures:
            picture.record_stream(self.stream)
        return pictures


def _sent(batch: ViewBatch, device: torch.device) -> ViewBatch:
    """The batch with what is still on the host, places and flips and numbers, sent in one copy.

    Twenty small copies would keep the host busy for longer.
    """
    if device.type == "cpu":
        return batch
    here = [tensor for tensor in tensors_of(batch) if not tensor.is_cuda]
    there = send_together([tensor.numpy() for tensor in here], device)
    arrived = {id(tensor): sent for tensor, sent in zip(here, there, strict=True)}
    return map_tensors(batch, lambda tensor: arrived.get(id(tensor), tensor))


class DevicePhotos:
    """Brings the photos of encoded batches to a device, and keeps them if there is a store.

    Args:
        reader: Reads a batch again if the device cannot decode a file of it.
        device: Where views are rendered.
        decode: Decodes JPEG files on the device; without it, batches must not have any.
        store: Keeps photos on the device or in memory of the host.
    """

    def __init__(
        self,
        reader: EncodedImages,
        device: torch.device,
        *,
        decode: Decode | None,
        store: PhotoStore | None = None,
    ) -> None:
        self._reader = reader
        self._device = device
        self._decode = decode
        self._store = store

    def of(self, batch: EncodedBatch) -> tuple[EncodedBatch, PackedImages]:
        """The photos on the device; the batch is another one if a file turned out to be bad."""
        if batch.is_kept.all():
            return batch, self._kept(batch.draws.indices)
        batch, packed = self._read(batch)
        if self._store is None:
            return batch, packed
        read = np.flatnonzero(~batch.is_kept)
        images = [packed.image(number) for number in range(len(packed))]
        self._store.keep(batch.draws.indices[read], images, batch.positions[read])
        if len(images) == len(batch.is_kept):
            return batch, packed
        return batch, self._together(batch, images)

    def _kept(self, indices: Integers) -> PackedImages:
        """Photos of the store: where they are, or copied from the host in one piece."""
        assert self._store is not None  # or nothing would be kept
        packed = self._store.packed(indices)
        if packed.buffer.device.type == self._device.type:
            return packed
        return packed.gathered(pin_memory=True).to(self._device, non_blocking=True)

    def _together(self, batch: EncodedBatch, read: list[Tensor]) -> PackedImages:
        """The photos that were just read and those that were kept before, in order."""
        kept = self._kept(batch.draws.indices[batch.is_kept])
        arrived, stayed = iter(read), (kept.image(number) for number in range(len(kept)))
        return PackedImages.from_images(
            [next(stayed) if is_kept else next(arrived) for is_kept in batch.is_kept]
        )

    def _read(self, batch: EncodedBatch) -> tuple[EncodedBatch, PackedImages]:
        """The photos of a batch that are not kept."""
        jpegs = np.flatnonzero(batch.is_jpeg).tolist()
        if not jpegs:
            read = np.flatnonzero(~batch.is_kept)
            heights, widths = batch.parameters.image_size[read].T
            packed = PackedImages(batch.payload, batch.offsets[read], heights, widths)
            return batch, packed.to(self._device, non_blocking=True)
        pictures = self._pictures(batch, jpegs)
        if pictures is None:
            pictures = {}
            for number in jpegs:
                pictures.update(self._pictures(batch, [number]) or {})
            # The others stay as they are: what a photo looks like must not depend on its batch.
            refused = [number for number in jpegs if number not in pictures]
            batch = self._reader.batch(batch.draws, refused=refused)
        read = np.flatnonzero(~batch.is_kept)
        images = [
            pictures[number] if number in pictures else self._copied(batch, number)
            for number in read.tolist()
        ]
        return batch, PackedImages.from_images(images)

    def _pictures(self, batch: EncodedBatch, numbers: list[int]) -> dict[int, Tensor] | None:
        """Decoded JPEG files, or None if there is one among them that the device refuses."""
        assert self._decode is not None  # without it, nothing is left encoded
        try:
            decoded = self._decode([batch.image(number) for number in numbers])
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # nvJPEG does not say which file it was
            if "out of memory" in str(error):
                raise
            return None
        return dict(zip(numbers, decoded, strict=True))

    def _copied(self, batch: EncodedBatch, number: int) -> Tensor:
        height, width = batch.parameters.image_size[number].tolist()
        pixels = batch.image(number).to(self._device, non_blocking=True)
        return pixels.view(3, height, width)
