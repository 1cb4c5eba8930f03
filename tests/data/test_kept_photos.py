"""A store gives back what was put in, for all processes, and nothing twice."""

from __future__ import annotations

import multiprocessing

import numpy as np
import pytest
import torch
from torch import Tensor

from clove_ssl.data.kept_photos import PhotoStore, PhotoTable, SharedMemory


def pictures(*indices: int) -> list[Tensor]:
    """Images that know their number, of different sizes."""
    return [torch.full((3, 2 + index % 3, 4), index, dtype=torch.uint8) for index in indices]


def shared_store(photos: int, capacity: int = 10_000) -> PhotoStore:
    return PhotoStore(PhotoTable(photos, capacity), SharedMemory(capacity))


def keep(store: PhotoStore, *indices: int) -> None:
    store.keep(np.array(indices), pictures(*indices), 10 + np.array(indices))


def test_photos_come_back_as_they_were(store_of_nine: PhotoStore) -> None:
    table = store_of_nine.table
    assert table.has(np.arange(9)).all()
    assert table.is_complete
    assert not table.is_full
    assert table.positions(np.array([4, 2])).tolist() == [14, 12]
    packed = store_of_nine.packed(np.array([5, 0, 5]))
    gathered = packed.gathered(pin_memory=False)
    for number, expected in enumerate(pictures(5, 0, 5)):
        assert torch.equal(packed.image(number), expected)
        assert torch.equal(gathered.image(number), expected)
    assert len(gathered.buffer) == sum(picture.numel() for picture in pictures(5, 0, 5))


@pytest.fixture
def store_of_nine() -> PhotoStore:
    store = shared_store(9)
    keep(store, 3, 1, 3, 8)  # a batch of two epochs may have a photo twice
    keep(store, 0, 1, 2, 4, 5, 6, 7)
    return store


def test_what_is_kept_already_takes_no_room() -> None:
    store = shared_store(3)
    keep(store, 0, 1)
    used = store.table.reserve(np.array([0, 1]), np.array([[2, 4], [3, 4]]), np.zeros(2))
    assert len(used.numbers) == 0
    assert store.table.kept == 2


def test_photos_beyond_the_room_are_left_out() -> None:
    first, second = (picture.numel() for picture in pictures(0, 1))
    store = shared_store(3, capacity=first + second)
    keep(store, 0, 1, 2)
    assert store.table.has(np.arange(3)).tolist() == [True, True, False]
    assert store.table.is_full
    assert torch.equal(store.image(1), pictures(1)[0])


def _keep_in_turn(store: PhotoStore, start: int) -> None:
    for index in range(start, 60, 2):
        keep(store, index, (index + 1) % 60)


def test_processes_that_keep_at_once_do_not_overwrite_each_other() -> None:
    store = shared_store(60)
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=_keep_in_turn, args=(store, start)) for start in (0, 1)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert store.table.is_complete
    for index, expected in enumerate(pictures(*range(60))):
        assert torch.equal(store.image(index), expected)
