"""Arrays of MATLAB files of version 5, the format of the DensePose project's surface files.

Only what such files hold is read: real numeric arrays, and cells of them. A file is a header of
128 bytes and a row of elements. An element has a type, a length and its data, padded to 8 bytes;
one of at most 4 bytes fits into its own head. A matrix is an element whose data is elements: flags
(the lowest byte is its class), dimensions, name, and the numbers column by column.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clove_ssl.errors import UserError

Array = NDArray[Any]  # numbers, or objects that are arrays (a cell)

_HEADER = 128
_MATRIX, _COMPRESSED = 14, 15
_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8"}
_NUMBERS |= {12: "i8", 13: "u8"}
_CELL = 1
_MOST_BYTES = 256 * 2**20  # of a compressed array; those of the project have 13
_NUMERIC_CLASSES = range(6, 16)


class _Unreadable(Exception):
    """The file is not what this module reads; the message says why."""


@dataclass(frozen=True)
class _Element:
    kind: int
    data: bytes


def read_matlab(path: Path) -> dict[str, Array]:
    """All arrays of a file by name; what is neither numbers nor cells is left out."""
    try:
        content = path.read_bytes()
        order = _byte_order(content)
        found: dict[str, Array] = {}
        for element in _elements(content[_HEADER:], order, outermost=True):
            if element.kind == _MATRIX:
                name, value = _matrix(element.data, order)
                if value is not None:
                    found[name] = value
        return found
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror}. Give the file of the DensePose project."
        ) from None
    except (_Unreadable, struct.error, zlib.error, ValueError, IndexError, RecursionError) as error:
        raise UserError(
            f"{path} is no MATLAB file of version 5: {error}. Copy or download it again; in MATLAB "
            "save with -v7, not -v7.3."
        ) from None


def _byte_order(content: bytes) -> str:
    if content[:4] == b"\x89HDF" or content[:19] == b"MATLAB 7.3 MAT-file":
        raise _Unreadable("it is of version 7.3")
    marks = {b"IM": "<", b"MI": ">"}
    if len(content) < _HEADER or content[_HEADER - 2 : _HEADER] not in marks:
        raise _Unreadable("its header is another one")
    return marks[content[_HEADER - 2 : _HEADER]]


def _elements(data: bytes, order: str, *, outermost: bool = False) -> Iterator[_Element]:
    """The elements in a row; only the outermost ones may be compressed."""
    at = 0
    while at + 8 <= len(data):
        kind, size = struct.unpack_from(f"{order}II", data, at)
        if kind >> 16:  # a small element: its length stands above its type
            kind, size, start = kind & 0xFFFF, kind >> 16, at + 4
            at += 8
        else:
            start = at + 8
            # Compressed elements are the only ones without padding.
            at = start + (size if kind == _COMPRESSED else -(-size // 8) * 8)
        if start + size > len(data):
            raise _Unreadable("it ends in the middle of an array")
        content = data[start : start + size]
        if kind == _COMPRESSED and outermost:
            yield from _elements(_inflated(content), order)
        else:
            yield _Element(kind, content)


def _inflated(content: bytes) -> bytes:
    """The element in a compressed one; a few bytes could stand for gigabytes."""
    inflated = zlib.decompressobj().decompress(content, _MOST_BYTES)
    if len(inflated) == _MOST_BYTES:
        raise _Unreadable(f"one of its arrays has more than {_MOST_BYTES / 2**20:.0f} MiB")
    return inflated


def _matrix(data: bytes, order: str) -> tuple[str, Array | None]:
    """Name and value of a matrix; None for classes that are not read."""
    flags, dimensions, name, *values = _elements(data, order)
    (word,) = struct.unpack_from(f"{order}I", flags.data)
    sides = _numbers(dimensions, order)
    if sides.dtype.kind not in "iu":
        raise _Unreadable("the sides of an array are no whole numbers")
    shape = tuple(sides.tolist())
    title = name.data.decode("latin-1")
    if word & 0xFF == _CELL:
        if len(values) != math.prod(shape):
            raise _Unreadable(f"it has {len(values)} of {math.prod(shape)} cells")
        cells = np.empty(len(values), object)
        for number, value in enumerate(values):
            cells[number] = _matrix(value.data, order)[1]
        return title, cells.reshape(shape, order="F")
    if word & 0xFF not in _NUMERIC_CLASSES or word & 0x800:  # the bit of complex numbers
        return title, None
    return title, _numbers(values[0], order).reshape(shape, order="F")


def _numbers(element: _Element, order: str) -> Array:
    if element.kind not in _NUMBERS:
        raise _Unreadable(f"it has numbers of type {element.kind}")
    return np.frombuffer(element.data, np.dtype(order + _NUMBERS[element.kind]))
