"""Brings batches to the device, and knows how long training waited for them.

Views are rendered in one of two places. :class:`ViewFeed` takes them from CPU
workers. :class:`DeviceFeed` decodes and renders on the GPU, in a thread and on
a stream of its own, some batches ahead of the training step.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.config.views import ViewSpec
from clove_ssl.console import Console
from clove_ssl.data.bad_files import BadFile, BadFiles
from clove_ssl.data.decode import BatchDecoder, find_batch_decoder
from clove_ssl.data.loading import end_workers, load_batches
from clove_ssl.data.order import ImageOrder, StepPlan
from clove_ssl.data.reading import (
    BatchReader,
    EncodedBatch,
    EncodedImages,
    RenderedBatch,
    RenderedViews,
    view_batch,
)
from clove_ssl.data.sources import ImageSource
from clove_ssl.pretraining.choices import Choices
from clove_ssl.training.batches import WaitingTime
from clove_ssl.training.processes import Process
from clove_ssl.views.batch import View, ViewBatch
from clove_ssl.views.draw.parameters import ViewParameters
from clove_ssl.views.pasting import foreground_boxes, paste_views
from clove_ssl.views.render.gpu import render_batch
from clove_ssl.views.render.packing import PackedImages

T = TypeVar("T")


def open_feed(
    config: PretrainConfig,
    source: ImageSource,
    specs: tuple[ViewSpec, ...],
    choices: Choices,
    process: Process,
    *,
    bad_files: BadFiles,
    start_step: int,
) -> ViewFeed | DeviceFeed:
    """The views of a run from a step on, rendered where it was decided."""
    load = partial(_load, config, choices, process, start_step=start_step)
    if not choices.renders_on_gpu:
        views = RenderedViews(source, specs, config.data, seed=config.seed)
        return ViewFeed(load(views), specs, process, bad_files=bad_files)
    decoder = find_batch_decoder()
    images = EncodedImages(
        source, specs, config.data, seed=config.seed, keeps_jpegs=decoder is not None
    )
    return DeviceFeed(
        load(images),
        images,
        process,
        bad_files=bad_files,
        dtype=choices.precision.dtype,
        decoder=decoder,
    )


def _load(
    config: PretrainConfig,
    choices: Choices,
    process: Process,
    reader: BatchReader[T],
    *,
    start_step: int,
) -> DataLoader[T]:
    plan = choices.plan
    order = StepPlan(
        ImageOrder(len(reader.source), config.seed),
        batch_size=plan.batch_size,
        processes=process.world_size,
        rank=process.rank,
        micro_batch=plan.micro_batch,
    )
    return load_batches(
        reader,
        order,
        workers=choices.workers.value,
        prefetch=config.data.prefetch,
        start_step=start_step,
        total_steps=plan.total_steps,
        pin_memory=process.device.type == "cuda",
    )


class _BadFileReports:
    """The part of a feed that speaks of unreadable files."""

    def __init__(self, process: Process, bad_files: BadFiles) -> None:
        self._process = process
        self._bad_files = bad_files
        self._unreported: list[BadFile] = []
        self.waiting = WaitingTime(process.device)

    def state(self) -> dict[str, Any]:
        """Which images there are, and the bad files so far, which are not to be forgiven again."""
        return {
            "images": self._bad_files.images,
            "names": self._bad_files.names,
            "bad_files": dict(self._bad_files.reasons),
        }

    def report_bad_files(self, console: Console) -> None:
        """Name the bad files that any process has met since the last call."""
        everywhere = self._process.gather(self._unreported)
        self._unreported = []
        told = {file.name: file for files in everywhere for file in files}
        for file in told.values():
            self._bad_files.add(file)
            console.warn(
                f"cannot read {file.name}: {file.reason}; the next readable file took its place"
            )
        if told:
            self._bad_files.write_down()
        self._bad_files.check()

    def _note(self, bad: tuple[BadFile, ...]) -> None:
        """Remember bad files until all processes exchange them."""
        self._unreported += [file for file in bad if self._bad_files.add(file)]
        self._bad_files.check()


class ViewFeed(_BadFileReports):
    """View batches that CPU workers rendered."""

    def __init__(
        self,
        loader: DataLoader[RenderedBatch],
        specs: tuple[ViewSpec, ...],
        process: Process,
        *,
        bad_files: BadFiles,
    ) -> None:
        super().__init__(process, bad_files)
        self._batches = iter(loader)
        self._specs = specs

    def next(self) -> ViewBatch:
        """The next micro-batch, normalised, on the device."""
        with self.waiting.counted():
            rendered: RenderedBatch = next(self._batches)
        self._note(rendered.bad)
        on_gpu = self._process.device.type == "cuda"
        batch = view_batch(rendered, self._specs).to(self._process.device, non_blocking=on_gpu)
        return batch.normalized(torch.float32, channels_last=on_gpu)

    def close(self) -> None:
        """End the workers."""
        end_workers(self._batches)


class DeviceFeed(_BadFileReports):
    """View batches that are decoded and rendered on the GPU, ahead of time."""

    def __init__(
        self,
        loader: DataLoader[EncodedBatch],
        reader: EncodedImages,
        process: Process,
        *,
        bad_files: BadFiles,
        dtype: torch.dtype,
        decoder: BatchDecoder | None,
        ahead: int = 2,
    ) -> None:
        super().__init__(process, bad_files)
        self._renderer = DeviceRenderer(reader, process.device, dtype=dtype, decoder=decoder)
        self._ready: queue.Queue[_Ready | BaseException] = queue.Queue(maxsize=ahead)
        # Workers start, and kernels are compiled, before there is a second thread.
        batches = iter(loader)
        try:
            for first in islice(batches, 1):
                self._ready.put(self._renderer.render(first))
        except BaseException:  # nobody can close a feed that was never made
            end_workers(batches)
            raise
        self._closing = False
        self._thread = threading.Thread(target=self._work_ahead, args=(batches,), daemon=True)
        self._thread.start()

    def next(self) -> ViewBatch:
        """The next micro-batch, normalised, on the device."""
        with self.waiting.counted():
            ready = self._ready.get()
            if isinstance(ready, BaseException):
                raise ready
            batch = ready.take()
        self._note(ready.bad)
        return batch

    def close(self) -> None:
        """End the thread, which may be waiting for room in the queue."""
        self._closing = True
        while self._thread.is_alive():
            with suppress(queue.Empty):
                self._ready.get(timeout=0.1)

    def _work_ahead(self, batches: Iterator[EncodedBatch]) -> None:
        """Fill the queue; an error is handed to the training loop, which would wait forever."""
        try:
            for batch in batches:
                if self._closing:
                    return
                self._ready.put(self._renderer.render(batch))
        except BaseException as error:
            self._ready.put(error)
        finally:
            end_workers(batches)


class _Ready:
    """A rendered batch whose kernels may still be running."""

    def __init__(
        self, batch: ViewBatch, bad: tuple[BadFile, ...], finished: torch.cuda.Event
    ) -> None:
        self.bad = bad
        self._batch = batch
        self._finished = finished

    def take(self) -> ViewBatch:
        """The batch for the current stream, which waits for it; the host does not."""
        stream = torch.cuda.current_stream()
        stream.wait_event(self._finished)
        for tensor in _tensors(self._batch):
            tensor.record_stream(stream)
        return self._batch


class DeviceRenderer:
    """Turns encoded batches into views on a stream of its own."""

    def __init__(
        self,
        reader: EncodedImages,
        device: torch.device,
        *,
        dtype: torch.dtype,
        decoder: BatchDecoder | None,
    ) -> None:
        self._reader = reader
        self._device = device
        self._dtype = dtype
        self._decoder = decoder
        self.stream, self.decoding_stream = (torch.cuda.Stream(device) for _ in range(2))  # type: ignore[no-untyped-call]

    def render(self, batch: EncodedBatch) -> _Ready:
        """Queue the work for a batch."""
        with torch.cuda.device(self._device), torch.cuda.stream(self.stream):
            batch, images = self._decode(batch)
            pixels = render_batch(images, batch.parameters, self._reader.specs, dtype=self._dtype)
            pixels = paste_views(pixels, batch.parameters, self._reader.specs)
            views = tuple(
                self._view(number, rendered, batch.parameters)
                for number, rendered in enumerate(pixels)
            )
            index = torch.from_numpy(batch.draws.indices)
            labels = None if batch.labels is None else torch.from_numpy(batch.labels)
            on_device = ViewBatch(views, index, labels).to(self._device, non_blocking=True)
            finished = torch.cuda.Event()  # type: ignore[no-untyped-call]
            finished.record(self.stream)
        return _Ready(on_device, batch.bad, finished)

    def _view(self, number: int, pixels: Tensor, parameters: ViewParameters) -> View:
        spec = self._reader.specs[number]
        boxes = foreground_boxes(parameters, number, spec)
        return View(
            pixels,
            parameters.geometry(number).pin_memory(),
            spec.role,
            None if boxes is None else boxes.pin_memory(),
        )

    def _decode(self, batch: EncodedBatch) -> tuple[EncodedBatch, PackedImages | list[Tensor]]:
        """The images on the device; the batch is another one if a file turned out to be bad."""
        try:
            return batch, self._decode_together(batch)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # nvJPEG refused a file and does not say which
            if "out of memory" in str(error):
                raise
            batch = self._reader.decoded_batch(batch.draws)
            return batch, self._decode_together(batch)

    def _decode_together(self, batch: EncodedBatch) -> PackedImages | list[Tensor]:
        if not batch.is_jpeg.any():
            heights, widths = batch.parameters.image_size.T
            packed = PackedImages(batch.payload, batch.offsets[:-1], heights, widths)
            return packed.to(self._device, non_blocking=True)
        assert self._decoder is not None  # without one, nothing is left encoded
        jpegs = batch.is_jpeg.nonzero()[0].tolist()
        decoded = self._decode_jpegs([batch.image(number) for number in jpegs], self._decoder)
        images = dict(zip(jpegs, decoded, strict=True))
        return [
            images[number] if number in images else self._copied(batch, number)
            for number in range(len(batch.is_jpeg))
        ]

    def _decode_jpegs(self, files: list[Tensor], decoder: BatchDecoder) -> list[Tensor]:
        """Pictures for the renderer's stream.

        nvJPEG writes at once, on a stream that nobody else knows, so it must never get memory that
        queued kernels still use. The pool of a stream that does nothing else has no such memory.
        """
        with torch.cuda.stream(self.decoding_stream):
            pictures = decoder(files, self._device)
        self.stream.wait_stream(self.decoding_stream)
        for picture in pictures:
            picture.record_stream(self.stream)
        return pictures

    def _copied(self, batch: EncodedBatch, number: int) -> Tensor:
        height, width = batch.parameters.image_size[number].tolist()
        pixels = batch.image(number).to(self._device, non_blocking=True)
        return pixels.view(3, height, width)


def _tensors(batch: ViewBatch) -> Iterator[Tensor]:
    yield batch.index
    if batch.labels is not None:
        yield batch.labels
    for view in batch.views:
        yield view.pixels
        yield from vars(view.geometry).values()
        if view.foreground is not None:
            yield view.foreground
