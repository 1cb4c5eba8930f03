"""A few odd photos, and the batches that feeds make of them with and without a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from builders.files.odd_files import encode, photo
from torch import Tensor

from clove_ssl.config.pretraining import DataConfig
from clove_ssl.config.views import ViewsConfig
from clove_ssl.data.decode import decode
from clove_ssl.data.kept_photos import PhotoStore
from clove_ssl.data.loading import WorkersUntilKept, load_batches
from clove_ssl.data.order import BatchOrder, ImageOrder
from clove_ssl.data.reading import BatchReader, EncodedImages, RenderedViews
from clove_ssl.data.sources import BadFiles, open_source
from clove_ssl.methods.clove.config import CLoVEConfig
from clove_ssl.pretraining.feed import DeviceFeed, ViewFeed
from clove_ssl.training.processes import Process
from clove_ssl.views.batch import ViewBatch

SPECS = CLoVEConfig(views=ViewsConfig(global_size=32, local_count=1, local_size=16)).view_specs()
ALONE = Process(0, 1, 0, 1, torch.device("cpu"))
PHOTOS, BATCH = 11, 4
BYTES = 3 * (9 * 40 * 56 + 2 * 80 * 96)
"""At most, of all photos once they are decoded."""
REFUSED = 3
"""The photo that a device cannot decode."""
_COMMENT = b"not on a GPU"


def write_photos(folder: Path) -> DataConfig:
    """JPEGs of different sizes, a PNG, a damaged file, one for the CPU alone, and a large one."""
    folder.mkdir()
    for number in range(PHOTOS):
        picture = photo(36 + number % 5, 40 + number)
        if number == 8:  # a quarter of it would be enough for some views
            picture = photo(80, 96)
        options = {"comment": _COMMENT} if number == REFUSED else {}
        data = encode(picture, "PNG") if number == 1 else encode(picture, "JPEG", **options)
        name = folder / f"{number:02d}.{'png' if number == 1 else 'jpg'}"
        name.write_bytes(data[: len(data) // 2] if number == 5 else data)
    return DataConfig(source=str(folder), max_bad=0.9)


def decode_otherwise(files: list[Tensor], device: torch.device) -> list[Tensor]:
    """Like nvJPEG: not the pixels that the CPU gives, and nothing if one file is not liked."""
    contents = [file.numpy().tobytes() for file in files]
    if any(_COMMENT in content for content in contents):
        raise RuntimeError("one of the files, but who knows which")
    return [255 - decode(content) for content in contents]


class Counting:
    """A source that knows how often it was read."""

    def __init__(self, data: DataConfig) -> None:
        self._whole = open_source(data)
        self.name = self._whole.name
        self.reads = 0

    def __len__(self) -> int:
        return len(self._whole)

    def read(self, index: int) -> bytes:
        self.reads += 1
        return self._whole.read(index)


def device_batches(
    data: DataConfig,
    store: PhotoStore | None,
    *,
    steps: tuple[int, int],
    workers: int = 0,
    process: Process = ALONE,
    source: Any = None,
) -> Iterator[ViewBatch]:
    """What a GPU would be fed, by the plain torch operations."""
    source = source or open_source(data)
    table = None if store is None else store.table
    reader = EncodedImages(source, SPECS, data, seed=1, keeps_jpegs=True, kept=table)
    load = _loads(reader, steps[1], process)
    loader: Any = load(steps[0], workers)
    if table is not None:
        loader = WorkersUntilKept(
            load, table, workers=workers, start_step=steps[0], micro_batches=_micro(process)
        )
    feed = DeviceFeed(
        loader,
        reader,
        process,
        bad_files=BadFiles(data, len(source)),
        dtype=torch.float32,
        decoder=decode_otherwise,
        store=store,
    )
    with closing(feed):
        for _ in range(_micro(process) * (steps[1] - steps[0])):
            yield feed.next()


def rendered_batches(
    data: DataConfig, store: PhotoStore | None, *, steps: tuple[int, int], workers: int = 0
) -> Iterator[ViewBatch]:
    """What workers render."""
    source = open_source(data)
    reader = RenderedViews(source, SPECS, data, seed=1, store=store)
    loader = _loads(reader, steps[1], ALONE)(steps[0], workers)
    feed = ViewFeed(loader, SPECS, ALONE, bad_files=BadFiles(data, len(source)))
    with closing(feed):
        for _ in range(_micro(ALONE) * (steps[1] - steps[0])):
            yield feed.next()


def assert_same_batches(ours: Iterator[ViewBatch], theirs: Iterator[ViewBatch]) -> None:
    """Images, classes, pixels and crops are equal, bit for bit."""
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine.index, other.index)
        assert (mine.labels is None) == (other.labels is None)
        if mine.labels is not None and other.labels is not None:
            assert torch.equal(mine.labels, other.labels)
        for view, reference in zip(mine.views, other.views, strict=True):
            assert torch.equal(view.pixels, reference.pixels)
            assert torch.equal(view.geometry.boxes, reference.geometry.boxes)
            assert torch.equal(view.geometry.image_size, reference.geometry.image_size)


def _micro(process: Process) -> int:
    return 2 // process.world_size


def _loads(reader: BatchReader[Any], last: int, process: Process) -> Callable[[int, int], Any]:
    plan = BatchOrder(
        ImageOrder(len(reader.source), 1),
        batch_size=BATCH,
        processes=process.world_size,
        rank=process.rank,
        micro_batch=BATCH // 2,
    )

    def load(start_step: int, workers: int) -> Any:
        return load_batches(
            reader,
            plan,
            workers=workers,
            prefetch=2,
            start_step=start_step,
            total_steps=last,
            pin_memory=False,
        )

    return load
