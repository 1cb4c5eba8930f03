"""Brings batches to the device, and knows how long the device waited for them."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader

from clove_ssl.config.views import ViewSpec
from clove_ssl.console import Console
from clove_ssl.data.loading import BadFile, BadFiles, RenderedBatch
from clove_ssl.engine.distributed import Process
from clove_ssl.views.batch import ViewBatch


class Batches(Protocol):
    """Where the training loop gets its micro-batches from."""

    waited: float

    def next(self) -> Any:
        """The next micro-batch, on the device."""

    def report_bad_files(self, console: Console) -> None:
        """Name what could not be read since the last call; all processes call this."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint must remember."""


class ViewFeed:
    """The view batches of pre-training."""

    def __init__(
        self,
        loader: DataLoader[RenderedBatch],
        specs: tuple[ViewSpec, ...],
        process: Process,
        *,
        bad_files: BadFiles,
    ) -> None:
        self._batches = iter(loader)
        self._specs = specs
        self._process = process
        self._bad_files = bad_files
        self._unreported: list[BadFile] = []
        self.waited = 0.0  # seconds, since somebody set it to 0

    def next(self) -> ViewBatch:
        """The next micro-batch, normalised, on the device."""
        start = time.perf_counter()
        rendered: RenderedBatch = next(self._batches)
        self.waited += time.perf_counter() - start
        self._note(rendered.bad)
        on_gpu = self._process.device.type == "cuda"
        batch = rendered.view_batch(self._specs).to(self._process.device, non_blocking=on_gpu)
        return batch.normalized(torch.float32, channels_last=on_gpu)

    def _note(self, bad: tuple[BadFile, ...]) -> None:
        """Remember bad files until all processes exchange them."""
        self._unreported += [file for file in bad if self._bad_files.add(file)]
        self._bad_files.check()

    def state(self) -> dict[str, Any]:
        """The bad files met so far, so that a resumed run does not forgive them again."""
        return {"images": self._bad_files.images, "bad_files": dict(self._bad_files.reasons)}

    def report_bad_files(self, console: Console) -> None:
        """Name the bad files that any process has met since the last call."""
        everywhere = self._process.gather(self._unreported)
        self._unreported = []
        for file in {file.name: file for files in everywhere for file in files}.values():
            self._bad_files.add(file)
            console.warn(
                f"cannot read {file.name}: {file.reason}; the next readable file took its place"
            )
        self._bad_files.check()
