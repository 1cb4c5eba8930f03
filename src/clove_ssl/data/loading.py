"""From positions in the image order to rendered views, in worker processes.

What a batch holds is a pure function of (seed, position): neither the number
of workers nor the moment a run was resumed changes a pixel. Workers send
pixels as a few tensors and everything else as plain numbers.

A file that cannot be read is replaced by the next readable one of the source,
and reported with the batch; nobody is left out silently.

Dimensions: B images of a micro-batch, V views per image.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from clove_ssl.config.pretraining import DataConfig
from clove_ssl.config.views import ViewSpec
from clove_ssl.data.decode import DecodeError, decode
from clove_ssl.data.sampling import Draws, StepPlan, view_uniforms
from clove_ssl.data.sources import ImageSource
from clove_ssl.errors import UserError
from clove_ssl.views.batch import View, ViewBatch
from clove_ssl.views.parameters import UNIFORMS_PER_VIEW, ViewParameters, draw_views
from clove_ssl.views.render_cpu import render_views


@dataclass(frozen=True)
class BadFile:
    """A file of the source that could not be read, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class RenderedBatch:
    """What a worker sends: pixels of all views, and numbers."""

    pixels: tuple[Tensor, ...]  # V x uint8 (B, 3, h, w)
    parameters: ViewParameters  # (B, V)
    index: np.ndarray  # (B,)
    bad: tuple[BadFile, ...]

    def pin_memory(self) -> RenderedBatch:
        """The same batch in page-locked memory; the data loader calls this by its name."""
        return replace(self, pixels=tuple(pixels.pin_memory() for pixels in self.pixels))

    def view_batch(self, specs: tuple[ViewSpec, ...]) -> ViewBatch:
        """The batch as methods want it."""
        views = tuple(
            View(pixels, self.parameters.geometry(number), spec.role)
            for number, (pixels, spec) in enumerate(zip(self.pixels, specs, strict=True))
        )
        return ViewBatch(views, torch.from_numpy(self.index))


class RenderedViews(Dataset[RenderedBatch]):
    """Reads, decodes and renders whole micro-batches."""

    def __init__(
        self, source: ImageSource, specs: tuple[ViewSpec, ...], config: DataConfig, *, seed: int
    ) -> None:
        self.source = source
        self.specs = specs
        self.max_pixels = config.max_pixels
        self.forgiven = forgiven_files(config, len(source))
        self.seed = seed

    def __getitem__(self, draws: Draws) -> RenderedBatch:
        bad: list[BadFile] = []
        images = [self._readable_image(int(index), bad) for index in draws.indices]
        uniforms = np.stack(
            [self._uniforms(int(epoch), int(index)) for epoch, index in zip(*draws, strict=True)]
        )  # (B, V, K)
        sizes = np.array([image.shape[1:] for image in images])  # (B, 2)
        parameters = draw_views(uniforms, sizes[:, 0], sizes[:, 1], self.specs)
        rendered = [
            render_views(image, parameters.image(number), self.specs)
            for number, image in enumerate(images)
        ]
        pixels = tuple(torch.stack(view) for view in zip(*rendered, strict=True))
        return RenderedBatch(pixels, parameters, draws.indices, tuple(bad))

    def _uniforms(self, epoch: int, index: int) -> np.ndarray:
        count = len(self.specs) * UNIFORMS_PER_VIEW
        return view_uniforms(self.seed, epoch, index, count).reshape(len(self.specs), -1)

    def _readable_image(self, index: int, bad: list[BadFile]) -> Tensor:
        """The image at ``index`` or the next readable one after it."""
        for offset in range(min(len(self.source), self.forgiven + 1)):
            position = (index + offset) % len(self.source)
            try:
                return decode(self.source.read(position), max_pixels=self.max_pixels)
            except (DecodeError, OSError) as error:
                bad.append(BadFile(self.source.name(position), str(error)))
        # More files in a row are bad than the run forgives, so the run ends on this report.
        return torch.zeros(3, 8, 8, dtype=torch.uint8)


class _PlannedBatches(Sampler[Draws]):
    """The micro-batches of this process, from a step on, in order."""

    def __init__(self, plan: StepPlan, *, start_step: int, total_steps: int) -> None:
        self._plan = plan
        self._steps = range(start_step, total_steps)

    def __iter__(self) -> Iterator[Draws]:
        for step in self._steps:
            for number in range(self._plan.micro_batches):
                yield self._plan.draws(step, number)

    def __len__(self) -> int:
        return len(self._steps) * self._plan.micro_batches


def load_batches(
    views: RenderedViews,
    plan: StepPlan,
    config: DataConfig,
    *,
    workers: int,
    start_step: int,
    total_steps: int,
    pin_memory: bool,
) -> DataLoader[RenderedBatch]:
    """All micro-batches of this process from ``start_step`` on."""
    return DataLoader(
        views,
        batch_size=None,
        sampler=_PlannedBatches(plan, start_step=start_step, total_steps=total_steps),
        num_workers=workers,
        prefetch_factor=config.prefetch if workers else None,
        pin_memory=pin_memory,
        worker_init_fn=_start_worker,
        generator=torch.Generator(),  # else starting an iterator would move the global one
    )


def choose_workers(
    config: DataConfig, *, processes_here: int, trains_on_cpu: bool
) -> tuple[int, str]:
    """Worker processes for this training process, and why."""
    if config.workers is not None:
        return config.workers, "as asked"
    cores = (os.cpu_count() or 1) if sys.platform == "darwin" else len(os.sched_getaffinity(0))
    share = cores // processes_here // (2 if trains_on_cpu else 1)
    return max(1, min(16, share)), f"{cores} cores" + ", half for training" * trains_on_cpu


def forgiven_files(config: DataConfig, images: int) -> int:
    """How many unreadable files a run tolerates."""
    return max(10, int(config.max_bad * images))


class BadFiles:
    """All unreadable files a run has met, by name."""

    def __init__(self, config: DataConfig, images: int) -> None:
        self.reasons: dict[str, str] = {}
        self._forgiven = forgiven_files(config, images)
        self.images = images

    def add(self, bad: BadFile) -> bool:
        """Remember a file; whether it was new."""
        is_new = bad.name not in self.reasons
        self.reasons[bad.name] = bad.reason
        return is_new

    def check(self) -> None:
        """Stop the run when there are too many."""
        count = len(self.reasons)
        if count <= self._forgiven and count < self.images:
            return
        examples = "\n".join(f"  {name}: {why}" for name, why in list(self.reasons.items())[:5])
        raise UserError(
            f"{count} of {self.images} files could not be read, more than the {self._forgiven} "
            f"that are forgiven. The first ones:\n{examples}\nAll are named in log.txt. Repair or "
            f"remove them, or allow more: --data.max-bad {1.5 * count / self.images:.2g}"
        )


def _start_worker(number: int) -> None:
    """Signals are for the main process, which ends its workers itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    torch.set_num_threads(1)
