"""Brings batches to the device, and knows how long training waited for them.

Views are rendered in one of two places. :class:`ViewFeed` takes them from CPU
workers. :class:`DeviceFeed` decodes and renders on the GPU, in a thread and on
a stream of its own, some batches ahead of the training step.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader

from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.config.views import ViewSpec
from clove_ssl.console import Console
from clove_ssl.data.decode import BatchDecoder, find_batch_decoder
from clove_ssl.data.kept_photos import PhotoStore, PhotoTable
from clove_ssl.data.loading import WorkersUntilKept, end_workers, load_batches
from clove_ssl.data.order import BatchOrder, ImageOrder
from clove_ssl.data.reading import (
    BatchReader,
    EncodedBatch,
    EncodedImages,
    RenderedBatch,
    RenderedViews,
    view_batch,
)
from clove_ssl.data.sources import BadFile, BadFiles, ImageSource
from clove_ssl.pretraining.choices import Choices
from clove_ssl.pretraining.device_renderer import DeviceRenderer, Ready
from clove_ssl.training.observer import WaitingTime
from clove_ssl.training.processes import Process
from clove_ssl.views.batch import ViewBatch

T = TypeVar("T")

_AHEAD = 2  # batches that are rendered before they are asked for


def open_feed(
    config: PretrainConfig,
    source: ImageSource,
    specs: tuple[ViewSpec, ...],
    choices: Choices,
    process: Process,
    *,
    bad_files: BadFiles,
    store: PhotoStore | None,
    steps: range,
) -> ViewFeed | DeviceFeed:
    """The views of some steps of a run, rendered where it was decided."""
    load = partial(_load, config, choices, process, steps=steps)
    if not choices.renders_on_gpu:
        views = RenderedViews(source, specs, config.data, seed=config.seed, store=store)
        return ViewFeed(load(views), specs, process, bad_files=bad_files, store=store)
    decoder = find_batch_decoder()
    images = EncodedImages(
        source,
        specs,
        config.data,
        seed=config.seed,
        keeps_jpegs=decoder is not None,
        kept=None if store is None else store.table,
    )
    return DeviceFeed(
        load(images, table=None if store is None else store.table),
        images,
        process,
        bad_files=bad_files,
        dtype=choices.precision.dtype,
        decoder=decoder,
        store=store,
    )


def _load(
    config: PretrainConfig,
    choices: Choices,
    process: Process,
    reader: BatchReader[T],
    *,
    steps: range,
    table: PhotoTable | None = None,
) -> Iterable[T]:
    """Batches by workers, which end once ``table`` has all photos."""
    plan, workers = choices.plan, choices.workers.value
    order = BatchOrder(
        ImageOrder(len(reader.source), config.seed),
        batch_size=plan.batch_size,
        processes=process.world_size,
        rank=process.rank,
        micro_batch=plan.micro_batch,
    )

    def load(start_step: int, workers: int) -> DataLoader[T]:
        return load_batches(
            reader,
            order,
            workers=workers,
            prefetch=config.data.prefetch,
            start_step=start_step,
            total_steps=steps.stop,
            pin_memory=process.device.type == "cuda",
        )

    if table is None:
        return load(steps.start, workers)
    return WorkersUntilKept(
        load, table, workers=workers, start_step=steps.start, micro_batches=plan.micro_batches
    )


class _Reports:
    """The part of a feed that speaks of unreadable files, and of photos that stay."""

    def __init__(self, process: Process, bad_files: BadFiles, store: PhotoStore | None) -> None:
        self._process = process
        self._bad_files = bad_files
        self._filling = None if store is None or store.table.is_complete else store.table
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
        """Name the bad files that any process has met since the last call.

        Say as well, once, that all photos are kept, or that there is no room for more.
        """
        # Only at logged steps, where the host waits anyway.
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
        self._report_photos(console)

    def _report_photos(self, console: Console) -> None:
        table = self._filling
        if table is None or not (table.is_complete or table.is_full):
            return
        self._filling = None
        if table.is_complete:
            console.say(f"All {table.photos:,} photos are cached: no more files are read")
            return
        console.warn(
            f"the photo cache is full with {table.kept:,} of {table.photos:,}: the sampled "
            "photos are smaller than most; photos that are not cached are read in every epoch"
        )

    def _note(self, bad: tuple[BadFile, ...]) -> None:
        """Remember bad files until all processes exchange them."""
        self._unreported += [file for file in bad if self._bad_files.add(file)]
        self._bad_files.check()


class ViewFeed(_Reports):
    """View batches that CPU workers rendered."""

    def __init__(
        self,
        loader: Iterable[RenderedBatch],
        specs: tuple[ViewSpec, ...],
        process: Process,
        *,
        bad_files: BadFiles,
        store: PhotoStore | None = None,
    ) -> None:
        super().__init__(process, bad_files, store)
        self._batches = iter(loader)
        self._specs = specs

    def next(self) -> ViewBatch:
        """The next micro-batch, normalised, on the device."""
        with self.waiting.counted():
            rendered: RenderedBatch = next(self._batches)
        self._note(rendered.bad)
        # Pixels travel as bytes, a quarter of their size as floats, and are normalised over there.
        on_gpu = self._process.device.type == "cuda"
        batch = view_batch(rendered, self._specs).to(self._process.device, non_blocking=on_gpu)
        return batch.normalized(torch.float32, channels_last=on_gpu)

    def close(self) -> None:
        """End the workers."""
        end_workers(self._batches)


class DeviceFeed(_Reports):
    """View batches that are decoded and rendered on the GPU, ahead of time."""

    def __init__(
        self,
        loader: Iterable[EncodedBatch],
        reader: EncodedImages,
        process: Process,
        *,
        bad_files: BadFiles,
        dtype: torch.dtype,
        decoder: BatchDecoder | None,
        store: PhotoStore | None = None,
    ) -> None:
        super().__init__(process, bad_files, store)
        self._renderer = DeviceRenderer(
            reader, process.device, dtype=dtype, decoder=decoder, store=store
        )
        # Bounded, as every batch in it holds memory of the GPU.
        self._ready: queue.Queue[Ready | BaseException] = queue.Queue(maxsize=_AHEAD)
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
        # A thread that waits for room in a full queue sees no flag; taking batches out wakes it.
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
