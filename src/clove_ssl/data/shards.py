"""Random access to the images in tar shards.

A shard is scanned once: the offset index says where the bytes of each image
lie, and reading one is then a single ``pread``. The index is kept in a file
beside the shard, or in the user's cache folder where that is not writable,
and made anew when size or modification time of the shard no longer fit.

Nothing is ever extracted. Links, devices and members whose names are absolute
or climb with ``..`` are counted as ignored and left alone.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, cast

import numpy as np

from clove_ssl.atomic import replacing
from clove_ssl.data.array_files import read_arrays
from clove_ssl.data.names import IntArray, NameTable, is_image_name
from clove_ssl.errors import UserError

INDEX_FORMAT = 1  # raise it when the fields of the index file change their meaning
BLOCK = 512  # tar files consist of blocks of this many bytes
_INDEX_OVERHEAD = 4096  # bytes of an index file that are not about a member
OPEN_SHARDS = 128  # most shards a process keeps open, well below usual limits

# What tarfile raises for damaged headers; number fields fail in many ways.
_DAMAGE = (tarfile.TarError, ValueError, ArithmeticError, LookupError)
_ZIP = b"PK\x03\x04"
_COMPRESSED = {
    b"\x1f\x8b": "gunzip",
    b"BZh": "bunzip2",
    b"\xfd7zXZ": "unxz",
    b"\x28\xb5\x2f\xfd": "unzstd",
}


@dataclass(frozen=True)
class ShardIndex:
    """The images of one tar file, in its order."""

    names: NameTable
    offsets: IntArray  # (N,) first byte of each image in the file
    sizes: IntArray  # (N,) bytes
    ignored: int  # members left alone because they are unsafe to read
    complete: bool  # false when the file ends early or is damaged on the way


def shard_index(path: str) -> ShardIndex:
    """The index of a shard, from its index file if that still fits."""
    try:
        facts = os.stat(path)
        # Opening a pipe would wait for somebody to write; a folder is refused by opening it.
        if not (stat.S_ISREG(facts.st_mode) or stat.S_ISDIR(facts.st_mode)):
            raise UserError(
                f"The shard {path} is not a regular file. Give uncompressed .tar files, or the "
                "folder of loose images."
            )
        stamp = np.array([INDEX_FORMAT, facts.st_size, facts.st_mtime_ns], np.int64)
        places = _index_files(path)
        loaded = (load_index(place, stamp) for place in places)
        return next((index for index in loaded if index), None) or _index_anew(path, stamp, places)
    except OSError as error:
        raise UserError(
            f"Cannot read the shard {path}: {error.strerror}. Make it a readable .tar file, or "
            "leave it out of the pattern."
        ) from None


def _index_anew(path: str, stamp: IntArray, places: list[Path]) -> ShardIndex:
    index = scan(path)
    any(save_index(place, stamp, index) for place in places)  # the first that is writable
    return index


def scan(path: str) -> ShardIndex:
    """Read all headers of a tar file."""
    with open(path, "rb") as file:
        return scan_file(file, path, length=os.path.getsize(path))


def scan_file(file: IO[bytes], name: str, *, length: int) -> ShardIndex:
    """Read all headers of an open tar file; of a truncated one, keep the images that are whole."""
    _refuse_compressed(file, name)
    try:
        with open_tar(file, length) as tar:
            index = _index_members(tar, length)
            end = tar.offset
    except _DAMAGE as error:
        raise UserError(
            f"{name} is not a tar file ({error}). --data takes uncompressed .tar shards; "
            "for loose images give the folder they are in."
        ) from None
    index = replace(index, complete=index.complete and _ends_properly(file, end, length))
    if not index.complete and not len(index.names):
        raise UserError(
            f"{name} is cut off or damaged before the end of its first image. Copy it again."
        )
    return index


def _index_members(tar: tarfile.TarFile, length: int) -> ShardIndex:
    names, offsets, sizes, ignored, complete = [], [], [], 0, True
    for member in members(tar):
        if is_unsafe(member):
            ignored += 1
        elif member.offset_data + member.size > length:
            complete = False
        elif member.isreg() and is_image_name(member.name):
            names.append(member.name)
            offsets.append(member.offset_data)
            sizes.append(member.size)
    places = np.array(offsets, np.int64), np.array(sizes, np.int64)
    return ShardIndex(NameTable.of(names), *places, ignored, complete)


def open_tar(file: IO[bytes], length: int) -> tarfile.TarFile:
    """The archive in an open file of ``length`` bytes, of which a header cannot ask for more."""
    return tarfile.open(fileobj=cast(IO[bytes], _Bounded(file, length)), mode="r:")


class _Bounded:
    """A file as ``tarfile`` reads it: long names are read in one go, and may claim terabytes."""

    def __init__(self, file: IO[bytes], length: int) -> None:
        self._file = file
        self._length = length
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int = -1) -> bytes:
        left = max(self._length - self._file.tell(), 0)
        return self._file.read(left if size < 0 else min(size, left))


def members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Members up to the end, or to the point where the file is cut off."""
    position = -1
    try:
        while (member := tar.next()) is not None and tar.offset > position:
            position = tar.offset  # a forged negative size would lead back, again and again
            # Kept members would take a gigabyte for a shard with a million of them.
            tar.members.clear()  # type: ignore[attr-defined]
            yield member
    except _DAMAGE:
        return  # what follows the last good header is judged by _ends_properly


def is_unsafe(member: tarfile.TarInfo) -> bool:
    """Whether a member is more than a plain file or folder below the place of the archive."""
    is_plain = (member.isreg() or member.isdir()) and not member.issparse() and member.size >= 0
    return not is_plain or member.name.startswith("/") or ".." in member.name.split("/")


def _ends_properly(file: IO[bytes], position: int, length: int) -> bool:
    """Whether the block after the last member is the empty one that ends an archive.

    ``tarfile`` takes a damaged header for the end, so this has to look itself.
    Some programs leave the empty blocks out; nothing is missing then.
    """
    if not 0 <= position < length:
        return position == length
    file.seek(position)
    return file.read(BLOCK) == bytes(BLOCK)


def _refuse_compressed(file: IO[bytes], name: str) -> None:
    start = file.read(8)
    file.seek(0)
    refuse_zip(start, name)
    for magic, program in _COMPRESSED.items():
        if start.startswith(magic):
            raise UserError(
                f"{name} is compressed, and single images cannot be read out of the middle of it. "
                f"Unpack it once: {program} < {name} > unpacked.tar"
            )


def refuse_zip(start: bytes, name: str) -> None:
    """Say what to do with a zip archive, where a file starts like one."""
    if start.startswith(_ZIP):
        raise UserError(
            f"{name} is a zip archive. Unpack it once, and give the folder that comes out of it: "
            f"unzip {name} -d PHOTOS"
        )


def _index_files(path: str) -> list[Path]:
    """Where the index of a shard may be kept, best place first."""
    absolute = os.path.abspath(path)
    cached = cached_index(os.fsencode(absolute))
    return [Path(absolute + ".clove-index"), *([cached] if cached else [])]


def cached_index(name: bytes) -> Path | None:
    """Where the user's cache keeps the index of a shard; nowhere for a user without a home."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not os.path.isabs(cache):
        return None
    return Path(cache, "clove-ssl", "shards", hashlib.sha256(name).hexdigest()[:32])


def load_index(place: Path, stamp: IntArray) -> ShardIndex | None:
    """The index that a file holds; nothing if it is of another shard, or damaged."""
    if not place.is_file():  # there is none, or a pipe that would be waited for
        return None
    length = int(stamp[1])
    try:
        # A header of an archive is longer than what the index says about its member.
        fields = read_arrays(place, most_bytes=length + _INDEX_OVERHEAD)
        if not np.array_equal(fields["stamp"], stamp):
            return None
        ignored, complete = (int(count) for count in fields["counts"])
        names = NameTable(fields["names"].tobytes(), fields["name_ends"])
        index = ShardIndex(names, fields["offsets"], fields["sizes"], ignored, bool(complete))
        return index if _is_plausible(index, length) else None
    except Exception:  # missing or damaged in any way: the shard itself has the truth
        return None


def _is_plausible(index: ShardIndex, length: int) -> bool:
    ends, counts = index.names.ends, {len(index.names), len(index.offsets), len(index.sizes)}
    return (
        len(counts) == 1
        and all(_is_list(array) for array in (ends, index.offsets, index.sizes))
        and bool((np.diff(ends, prepend=0) >= 0).all())
        and (ends[-1] if len(ends) else 0) == len(index.names.block)
        and _are_names(index.names.block, ends)
        and bool((index.offsets >= 0).all() and (index.sizes >= 0).all())
        and bool((index.sizes <= length - index.offsets).all())  # the sum could overflow
    )


def _are_names(block: bytes, ends: IntArray) -> bool:
    """Whether the block is text, and no name ends within a character; if not, this raises."""
    block.decode("utf-8", "surrogatepass")
    starts = np.frombuffer(block, np.uint8)[ends[ends < len(block)]]
    return bool((starts & 0xC0 != 0x80).all())


def _is_list(array: IntArray) -> bool:
    return array.dtype == np.int64 and array.ndim == 1


def save_index(place: Path, stamp: IntArray, index: ShardIndex) -> bool:
    """Write the index file in one move; say whether that was possible."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with replacing(place) as file:
            np.savez(
                file,
                stamp=stamp,
                counts=np.array([index.ignored, index.complete], np.int64),
                names=np.frombuffer(index.names.block, np.uint8),
                name_ends=index.names.ends,
                offsets=index.offsets,
                sizes=index.sizes,
            )
    except OSError:
        return False
    return True


class ShardReader:
    """Byte ranges of many files.

    Files are opened on first use in each process and read with ``pread``,
    which has no position that forked processes or threads could fight over.
    """

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths
        self._open: dict[int, _Descriptor] = {}

    def read(self, shard: int, offset: int, size: int) -> bytes:
        """``size`` bytes of file number ``shard``."""
        # This reference keeps the file open even if another thread drops it from the table.
        descriptor = self._open.get(shard) or self._reopen(shard)
        data = os.pread(descriptor.number, size, offset)
        if len(data) != size:
            raise OSError(f"{self.paths[shard]} has become shorter since it was indexed")
        return data

    def _reopen(self, shard: int) -> _Descriptor:
        if len(self._open) >= OPEN_SHARDS:
            self._open.pop(next(iter(self._open)), None)
        descriptor = self._open[shard] = _Descriptor(self.paths[shard])
        return descriptor

    def __getstate__(self) -> dict[str, object]:
        return {"paths": self.paths, "_open": {}}


class _Descriptor:
    """An open file that is closed with its last reference."""

    def __init__(self, path: str) -> None:
        self.number = os.open(path, os.O_RDONLY)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if hasattr(self, "number"):  # at the end of the program, ``os`` may be gone before this
            close(self.number)
