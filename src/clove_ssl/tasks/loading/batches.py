"""Worker processes that read batches of a detector ahead, in exactly the order of the run."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing

import torch
from torch.utils.data import DataLoader, Sampler

from clove_ssl.data.loading import batches_of, start_worker
from clove_ssl.data.order import BatchOrder
from clove_ssl.errors import UserError
from clove_ssl.tasks.labels.samples import DetectionDataset
from clove_ssl.tasks.loading.images import InputSizes, Refusal, TestImages, TrainingImages
from clove_ssl.tasks.loading.order import GroupedOrder, aspect_kinds
from clove_ssl.tasks.rcnn.instances import DetectionBatch


class LoadedBatches(Iterable[DetectionBatch]):
    """The batches of a loader; a worker's refusal becomes the user's error."""

    def __init__(self, loader: DataLoader[DetectionBatch | Refusal]) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Generator[DetectionBatch]:
        # Closed here: an inner generator that is only dropped ends its workers where an error, such
        # as that of a worker which was killed, can be printed but not raised.
        with closing(batches_of(self._loader)) as batches:
            for batch in batches:
                if isinstance(batch, Refusal):
                    raise UserError(batch.message)
                yield batch


class _OrderedPositions(Sampler[range]):
    """Positions of the micro-batches of a process, from a step on."""

    def __init__(self, order: BatchOrder, steps: range) -> None:
        self._order, self._steps = order, steps

    def __iter__(self) -> Iterator[range]:
        for step in self._steps:
            for number in range(self._order.micro_batches):
                yield self._order.positions(step, number)

    def __len__(self) -> int:
        return len(self._steps) * self._order.micro_batches


def training_order(dataset: DetectionDataset, *, seed: int, group: int) -> GroupedOrder:
    """Wide and tall images in groups of ``group``, shuffled."""
    return GroupedOrder(aspect_kinds(dataset.samples), seed, group=group)


def load_training_batches(
    images: TrainingImages,
    order: BatchOrder,
    *,
    start_step: int,
    total_steps: int,
    workers: int,
    prefetch: int = 2,
    pin_memory: bool = False,
) -> LoadedBatches:
    """All micro-batches of this process from ``start_step`` on.

    ``order`` is one of the same row as ``images``; processes share a global batch by slices.
    """
    positions = _OrderedPositions(order, range(start_step, total_steps))
    return _load(images, positions, workers=workers, prefetch=prefetch, pin_memory=pin_memory)


def load_test_batches(
    dataset: DetectionDataset,
    *,
    sizes: InputSizes,
    batch_size: int = 1,
    processes: int = 1,
    rank: int = 0,
    workers: int = 0,
    prefetch: int = 2,
    pin_memory: bool = False,
) -> LoadedBatches:
    """Every ``processes``-th image, once, in batches; keys are numbers of samples.

    Batches of 1 are never padded, which is how published scores were made.
    """
    mine = range(rank, len(dataset.samples), processes)
    numbers = [list(mine[at : at + batch_size]) for at in range(0, len(mine), batch_size)]
    images = TestImages(dataset, sizes=sizes)
    return _load(images, numbers, workers=workers, prefetch=prefetch, pin_memory=pin_memory)


def _load(
    images: TrainingImages | TestImages,
    batches: Sampler[range] | Sequence[list[int]],
    *,
    workers: int,
    prefetch: int,
    pin_memory: bool,
) -> LoadedBatches:
    loader: DataLoader[DetectionBatch | Refusal] = DataLoader(
        images,
        batch_size=None,
        sampler=batches,
        num_workers=workers,
        prefetch_factor=prefetch if workers else None,
        pin_memory=pin_memory,
        worker_init_fn=start_worker,
        generator=torch.Generator(),  # else starting an iterator would move the global one
    )
    return LoadedBatches(loader)
