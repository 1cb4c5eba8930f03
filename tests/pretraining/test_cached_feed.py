"""Photos that stay change nothing but the work: batches with and without a store, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from builders.runs.cached_feeds import (
    BATCH,
    BYTES,
    PHOTOS,
    REFUSED,
    SPECS,
    Counting,
    assert_same_batches,
    decode_otherwise,
    device_batches,
    rendered_batches,
    write_photos,
)

from clove_ssl.config.pretraining import DataConfig
from clove_ssl.data.decode import decode
from clove_ssl.data.kept_photos import PhotoStore, PhotoTable, SharedMemory
from clove_ssl.data.labels.classified import LabelledImages
from clove_ssl.data.order import Draws
from clove_ssl.data.reading import EncodedImages
from clove_ssl.data.sources import open_source
from clove_ssl.pretraining.device_renderer import DevicePhotos
from clove_ssl.pretraining.images import CacheChoice, open_store
from clove_ssl.training.processes import Process

EPOCH = -(-PHOTOS // BATCH)
RESUMED = (EPOCH // 2, 4 * EPOCH)
"""Steps from within an epoch, so that the store is complete only after another one."""


@pytest.fixture
def data(tmp_path: Path) -> DataConfig:
    return write_photos(tmp_path / "photos")


def on_device(capacity: int = BYTES) -> PhotoStore:
    return PhotoStore(PhotoTable(PHOTOS, capacity), torch.empty(capacity, dtype=torch.uint8))


def in_host_memory(capacity: int = BYTES) -> PhotoStore:
    return PhotoStore(PhotoTable(PHOTOS, capacity), SharedMemory(capacity))


@pytest.mark.parametrize("make_store", [on_device, in_host_memory])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_device_gets_the_same_batches(
    data: DataConfig, make_store: Callable[[], PhotoStore], workers: int
) -> None:
    store = make_store()
    ours = device_batches(data, store, steps=RESUMED, workers=workers)
    assert_same_batches(ours, device_batches(data, None, steps=RESUMED))
    assert store.table.is_complete


def test_photos_that_find_no_room_are_read_again(data: DataConfig) -> None:
    store = on_device(BYTES // 2)
    ours = device_batches(data, store, steps=RESUMED)
    assert_same_batches(ours, device_batches(data, None, steps=RESUMED))
    assert store.table.is_full
    assert 0 < store.table.kept < PHOTOS


def test_classes_go_with_photos_that_took_the_place_of_bad_ones(data: DataConfig) -> None:
    everything = np.arange(PHOTOS)
    source = LabelledImages(
        open_source(data), everything, lambda index: index % 3, class_names=("a", "b", "c")
    )
    ours = device_batches(data, on_device(), steps=RESUMED, source=source)
    assert_same_batches(ours, device_batches(data, None, steps=RESUMED, source=source))


def test_no_file_is_read_after_the_first_epoch(data: DataConfig) -> None:
    source, epoch = Counting(data), EPOCH + 1  # a batch of the next one may be read ahead
    for number, _ in enumerate(device_batches(data, on_device(), steps=(0, 9), source=source)):
        if number == 2 * epoch:
            reads = source.reads
    assert source.reads == reads


def test_workers_end_when_all_photos_are_kept(data: DataConfig) -> None:
    before = mp.active_children()
    batches = device_batches(data, on_device(), steps=(0, 9), workers=2)
    next(batches)
    assert len(mp.active_children()) == len(before) + 2
    for _ in zip(batches, range(15), strict=False):
        pass
    assert len(mp.active_children()) == len(before)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_renderer_of_the_cpu_gets_the_same_batches(data: DataConfig, workers: int) -> None:
    store = in_host_memory()
    ours = rendered_batches(data, store, steps=RESUMED, workers=workers)
    assert_same_batches(ours, rendered_batches(data, None, steps=RESUMED))
    assert store.table.kept == PHOTOS - 1  # the large one is decoded for each draw of its views


def test_a_photo_looks_the_same_whatever_is_in_its_batch(data: DataConfig) -> None:
    source = open_source(data)
    reader = EncodedImages(source, SPECS, data, seed=0, keeps_jpegs=True)
    here = torch.device("cpu")
    photos = DevicePhotos(reader, here, decode=partial(decode_otherwise, device=here))
    indices = np.array([2, REFUSED, 4, 1])
    batch, packed = photos.of(reader[Draws(np.zeros(4, np.int64), indices)])
    by_the_cpu = [decode(source.read(index)) for index in indices]
    for number, expected in enumerate(by_the_cpu):
        if batch.is_jpeg[number]:
            expected = 255 - expected
        assert torch.equal(packed.image(number), expected)
    assert batch.is_jpeg.tolist() == [True, False, True, False]


@pytest.mark.forks
def test_two_processes_share_what_they_read(tmp_path: Path, data: DataConfig) -> None:
    mp.start_processes(_one_of_two, (str(tmp_path), data), nprocs=2, start_method="fork")


def _one_of_two(rank: int, folder: str, data: DataConfig) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=2)
    process = Process(rank, 2, rank, 2, torch.device("cpu"))
    store = open_store(CacheChoice("ram", "for a test", BYTES), PHOTOS, process)
    assert store is not None
    source = Counting(data)
    for steps in (0, EPOCH), (EPOCH, 3 * EPOCH):
        source.reads = 0
        ours = device_batches(data, store, steps=steps, process=process, source=source)
        assert_same_batches(ours, device_batches(data, None, steps=steps, process=process))
        dist.barrier()
    assert source.reads == 0
    dist.destroy_process_group()
