"""Worker processes that read batches of a detector ahead, in exactly the order of the run."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import closing
from typing import TypeVar

from torch.utils.data import DataLoader

from clove_ssl.data.loading import InOrder, batches_of, read_ahead
from clove_ssl.data.order import BatchOrder
from clove_ssl.errors import UserError
from clove_ssl.tasks.labels.samples import DetectionDataset
from clove_ssl.tasks.loading.images import InputSizes, Refusal, TestImages, TrainingImages
from clove_ssl.tasks.loading.order import GroupedOrder, aspect_kinds
from clove_ssl.tasks.rcnn.instances import DetectionBatch

Batch = TypeVar("Batch")


class LoadedBatches(Iterable[Batch]):
    """The batches of a loader; a worker's refusal becomes the user's error."""

    def __init__(self, loader: DataLoader[Batch | Refusal]) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Generator[Batch]:
        # Closed here: an inner generator that is only dropped ends its workers where an error, such
        # as that of a worker which was killed, can be printed but not raised.
        with closing(batches_of(self._loader)) as batches:
            for batch in batches:
                if isinstance(batch, Refusal):
                    raise UserError(batch.message)
                yield batch


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
) -> LoadedBatches[DetectionBatch]:
    """All micro-batches of this process from ``start_step`` on.

    ``order`` is one of the same row as ``images``; processes share a global batch by slices.
    """
    positions = InOrder(
        order.positions, range(start_step, total_steps), micro_batches=order.micro_batches
    )
    return LoadedBatches(
        read_ahead(images, positions, workers=workers, prefetch=prefetch, pin_memory=pin_memory)
    )


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
) -> LoadedBatches[DetectionBatch]:
    """Every ``processes``-th image, once, in batches; keys are numbers of samples.

    Batches of 1 are never padded, which is how published scores were made.
    """
    mine = range(rank, len(dataset.samples), processes)
    numbers = [list(mine[at : at + batch_size]) for at in range(0, len(mine), batch_size)]
    images = TestImages(dataset, sizes=sizes)
    return LoadedBatches(
        read_ahead(images, numbers, workers=workers, prefetch=prefetch, pin_memory=pin_memory)
    )
