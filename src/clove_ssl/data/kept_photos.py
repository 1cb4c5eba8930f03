"""Decoded photos in one piece of memory, as the renderer takes them, found by their number.

A :class:`PhotoTable` says which photos are kept, where they are and how large they
are; all processes of a machine read it. The pixels are in the memory of a GPU, which
belongs to one process, or in memory of the host, which the processes share. How much
all photos of a source take is estimated from the headers of some.

A photo is kept under the number that was asked for. Where its file was bad, that is
what the next readable file gave, as it would be without a store.

Dimensions: B photos of a batch.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.reduction import DupFd
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from clove_ssl.data.decode import DecodeError, image_size
from clove_ssl.data.sources import ImageSource
from clove_ssl.views.render.packing import PackedImages

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]

_STATE, _OFFSET, _HEIGHT, _WIDTH, _POSITION, _COLUMNS = range(6)
_ABSENT, _COMING, _KEPT = range(3)
_USED, _KEPT_COUNT, _IS_FULL = range(3)  # places in the first row, which is no photo's

MOST_SAMPLES, MOST_REMOTE_SAMPLES = 256, 32  # behind a URL each of them is a request
_FEWEST_SAMPLES = 8
_EVERY = 16  # of a small source no more than each sixteenth is looked at, since runs are short
_MARGIN = 1.15  # the mean of 256 sizes is rarely off by more than a few per cent
_ROOM_FOR_FEW = 2**24  # bytes; where there are few photos, one can be much larger than all others


class Room(NamedTuple):
    """Where photos go in a store."""

    numbers: Integers  # of the photos in their batch that are new and find room
    start: int
    stop: int


class PhotoTable:
    """Which photos are kept, where, and how large they are.

    Args:
        photos: How many there are.
        capacity: Bytes for the pixels of all of them.
        address: Where a process of the same machine has the table already.
    """

    def __init__(self, photos: int, capacity: int, *, address: str | None = None) -> None:
        self.photos = photos
        self.capacity = capacity
        size = 8 * _COLUMNS * (photos + 1)
        self._memory = SharedMemory(size) if address is None else SharedMemory.at(address)
        self._view_memory()

    @property
    def address(self) -> str:
        """Where other processes of the machine find it."""
        return self._memory.address

    @property
    def kept(self) -> int:
        """How many photos are kept."""
        return int(self._totals[_KEPT_COUNT])

    @property
    def is_complete(self) -> bool:
        """Whether all photos are kept, so that no file has to be read any more."""
        return self.kept == self.photos

    @property
    def is_full(self) -> bool:
        """Whether a photo found no room."""
        return bool(self._totals[_IS_FULL])

    def has(self, indices: Integers) -> Booleans:
        """Which of these photos are kept: (B,)."""
        is_kept: Booleans = self._rows[indices, _STATE] == _KEPT
        return is_kept

    def sizes(self, indices: Integers) -> Integers:
        """Heights and widths of photos, (B, 2); zeros for those that are not kept."""
        return self._rows[indices, _HEIGHT : _WIDTH + 1]

    def offsets(self, indices: Integers) -> Integers:
        """Where photos that are kept begin: (B,)."""
        offsets: Integers = self._rows[indices, _OFFSET]
        return offsets

    def positions(self, indices: Integers) -> Integers:
        """Where in the source the photos that are kept were found: (B,)."""
        positions: Integers = self._rows[indices, _POSITION]
        return positions

    def reserve(self, indices: Integers, sizes: Integers, positions: Integers) -> Room:
        """Make room for those photos that nobody has brought yet, one after the other."""
        with self._memory.locked():
            # Sorted by place again below: the order in which photos come decides where they lie.
            _, places = np.unique(indices, return_index=True)  # a batch may have a photo twice
            places.sort()
            new = places[self._rows[indices[places], _STATE] == _ABSENT]
            start = int(self._totals[_USED])
            ends = start + np.cumsum(3 * sizes[new].prod(axis=1))
            fitting = int(np.searchsorted(ends, self.capacity, side="right"))
            if fitting < len(new):
                self._totals[_IS_FULL] = 1
            new, ends = new[:fitting], ends[:fitting]
            rows = np.empty((len(new), _COLUMNS), np.int64)
            # Reserved under the lock, copied without it: readers that see this state read the file.
            rows[:, _STATE] = _COMING
            rows[:, _OFFSET] = np.concatenate([[start], ends])[:-1]
            rows[:, _HEIGHT : _WIDTH + 1] = sizes[new]
            rows[:, _POSITION] = positions[new]
            self._rows[indices[new]] = rows
            stop = int(ends[-1]) if len(ends) else start
            self._totals[_USED] = stop
        return Room(new, start, stop)

    def mark_kept(self, indices: Integers) -> None:
        """The pixels of these photos, whose room was reserved, are there."""
        with self._memory.locked():
            # After the pixels: whoever sees this state may read them.
            self._rows[indices, _STATE] = _KEPT
            self._totals[_KEPT_COUNT] += len(indices)

    def _view_memory(self) -> None:
        # Whole words of 8 bytes, which processors read and write in one go: readers need no lock.
        table = np.frombuffer(self._memory.bytes, np.int64).reshape(-1, _COLUMNS)
        self._totals: Integers = table[0]
        self._rows: Integers = table[1:]

    def __getstate__(self) -> dict[str, object]:
        return {name: vars(self)[name] for name in ("photos", "capacity", "_memory")}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._view_memory()


class PhotoStore:
    """Pixels of photos on a device, or in shared memory of the host."""

    def __init__(self, table: PhotoTable, pixels: Tensor | SharedMemory) -> None:
        self.table = table
        self._pixels = pixels
        self._view_pixels()

    def keep(self, indices: Integers, images: Sequence[Tensor], positions: Integers) -> None:
        """Copy uint8 images (3, H, W) of any device into the store, as far as there is room.

        They were asked for by ``indices`` and found at ``positions`` of the source.
        """
        sizes = np.array([image.shape[1:] for image in images], np.int64).reshape(-1, 2)
        room = self.table.reserve(indices, sizes, positions)
        if not len(room.numbers):
            return
        flat = torch.cat([images[number].reshape(-1) for number in room.numbers])
        self.buffer[room.start : room.stop].copy_(flat)
        self.table.mark_kept(indices[room.numbers])

    def packed(self, indices: Integers) -> PackedImages:
        """Photos that are kept, where they are."""
        heights, widths = self.table.sizes(indices).T
        return PackedImages(self.buffer, self.table.offsets(indices), heights, widths)

    def image(self, index: int) -> Tensor:
        """One photo that is kept, uint8 (3, H, W), where it is."""
        return self.packed(np.array([index])).image(0)

    def _view_pixels(self) -> None:
        pixels = self._pixels
        if isinstance(pixels, SharedMemory):
            pixels = torch.frombuffer(pixels.bytes, dtype=torch.uint8)
        self.buffer: Tensor = pixels

    def __getstate__(self) -> dict[str, object]:
        return {"table": self.table, "_pixels": self._pixels}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._view_pixels()


def has_shared_memory() -> bool:
    """Whether this system has memory of this kind."""
    return hasattr(os, "memfd_create")


class SharedMemory:
    """Bytes, zero at first, that are the same for all processes that hold them.

    They have no name in any folder: the system takes them back when the last process that holds
    them ends, however that happens, so nobody has to clean up. Pages cost nothing until they are
    written, and do not count against the size of ``/dev/shm``, which is small in many containers.

    Worker processes inherit them, or get them with what is pickled at their start. Processes
    that were started side by side open them by ``address``.
    """

    def __init__(self, size: int) -> None:
        # Not multiprocessing's shared memory: its names outlive a killed run, and fill /dev/shm.
        file = os.memfd_create("clove-photos")
        os.ftruncate(file, size)
        self._take(file)

    @classmethod
    def at(cls, address: str) -> SharedMemory:
        """The memory that another process of this machine calls ``address``."""
        memory = cls.__new__(cls)
        memory._take(os.open(address, os.O_RDWR | os.O_CLOEXEC))
        return memory

    @property
    def address(self) -> str:
        """Where other processes of the same user find it while this one holds it."""
        return f"/proc/{os.getpid()}/fd/{self._file}"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep all other processes out; what they wrote before can be read."""
        # A lock of the file, which the system opens when its holder dies; a mutex in the memory
        # would stay locked for good.
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def _take(self, file: int) -> None:
        self._file = file
        self.bytes = mmap.mmap(file, os.fstat(file).st_size)

    def __del__(self) -> None:
        file = getattr(self, "_file", None)
        if file is not None:
            os.close(file)

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_parent, (DupFd(self._file),)


def _from_parent(file: Any) -> SharedMemory:
    memory = SharedMemory.__new__(SharedMemory)
    memory._take(file.detach())
    return memory


@dataclass(frozen=True)
class DecodedSize:
    """An estimate of bytes, and the photos it comes from."""

    bytes: int
    samples: int
    left_out: int = 0
    """Samples that would not stay."""

    @property
    def with_margin(self) -> int:
        """Bytes that are enough unless the samples were far from typical."""
        return int(_MARGIN * self.bytes) + _ROOM_FOR_FEW


def estimate_decoded_size(
    source: ImageSource,
    *,
    max_pixels: int,
    stays: Callable[[int, int], bool],
    most_samples: int = MOST_SAMPLES,
) -> DecodedSize:
    """What the photos take as 8-bit RGB whose height and width say that they will stay.

    Files that cannot be read count like the others.
    """
    count = len(source)
    samples = min(count, most_samples, max(_FEWEST_SAMPLES, count // _EVERY))
    sizes = []
    for index in np.linspace(0, count - 1, samples).astype(np.int64).tolist():
        # Unreadable ones are named when their turn comes.
        with suppress(DecodeError, OSError, MemoryError):
            sizes.append(image_size(source.read(index), max_pixels=max_pixels))
    staying = [3 * height * width for height, width in sizes if stays(height, width)]
    mean = sum(staying) / len(sizes) if sizes else 0.0
    return DecodedSize(int(mean * count), len(sizes), len(sizes) - len(staying))
