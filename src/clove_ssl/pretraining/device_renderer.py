"""Views of a batch, rendered on the device, on a stream of its own where that is a GPU."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from clove_ssl.data.bad_files import BadFile
from clove_ssl.data.cache.store import PhotoStore
from clove_ssl.data.decode import BatchDecoder
from clove_ssl.data.reading import EncodedBatch, EncodedImages
from clove_ssl.layers.transfers import map_tensors, tensors_of
from clove_ssl.pretraining.photos import DevicePhotos
from clove_ssl.views.batch import View, ViewBatch
from clove_ssl.views.draw.parameters import ViewParameters
from clove_ssl.views.pasting import foreground_boxes, paste_views
from clove_ssl.views.render.gpu import render_batch
from clove_ssl.views.render.packing import send_together


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
