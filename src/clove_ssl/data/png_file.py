"""Whether all of a PNG file is there; Pillow leaves black what does not come.

A PNG file is a row of chunks, each a length, four letters, that many bytes and a
checksum. The bytes of all IDAT chunks are one zlib stream of rows, from the top.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

_FIRST_CHUNK = 8  # after the signature
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by the header's kind of colour
_MOST_INFLATED = 1032  # bytes that a byte of a zlib stream can become
_STEP = 16_384  # bytes inflated at once, which become 17 MB at most
# First column and row, and steps between columns and rows, of the passes of an interlaced file.
_PASSES = (
    *((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4)),
    *((0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)),
)


@dataclass(frozen=True)
class PngFile:
    """The header of a PNG file and its compressed rows."""

    width: int
    height: int
    bits: int  # of a pixel
    interlaced: bool
    packed: tuple[memoryview, ...]

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of all rows once they are inflated; a row begins with its filter."""
        total = 0
        for column, row, right, down in _PASSES if self.interlaced else ((0, 0, 1, 1),):
            columns = -(-(self.width - column) // right)
            rows = -(-(self.height - row) // down)
            if columns > 0 and rows > 0:
                total += rows * (1 + -(-columns * self.bits // 8))
        return total

    def refuse_impossible(self) -> None:
        """Refuse a few bytes that promise many rows, before memory is taken for them."""
        packed = sum(len(chunk) for chunk in self.packed)
        if packed * _MOST_INFLATED < self.row_bytes:
            raise ValueError(f"{packed:,} bytes cannot hold {self.width} x {self.height} pixels")

    def refuse_missing_rows(self) -> None:
        """Refuse a stream that ends before the last row; this inflates all of it."""
        inflater, found = zlib.decompressobj(), 0
        for piece in self._pieces():
            found += len(inflater.decompress(piece))
            if found >= self.row_bytes:
                return
            if inflater.eof:  # it would keep what follows, and copy all of it again and again
                break
        raise ValueError(f"only {100 * found // self.row_bytes} % of its pixels are there")

    def _pieces(self) -> Iterator[memoryview]:
        for chunk in self.packed:
            for start in range(0, len(chunk), _STEP):
                yield chunk[start : start + _STEP]


def read_png(data: bytes) -> PngFile:
    """The chunks of a PNG file up to its end; Pillow does not compare the checksums of pixels.

    Raises:
        ValueError: If a checksum is wrong or the end is missing; the message is the reason.
    """
    view, position = memoryview(data), _FIRST_CHUNK
    header = memoryview(b"")
    packed: list[memoryview] = []
    while position + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        end = position + 8 + length
        if end + 4 > len(data):
            break
        if zlib.crc32(view[position + 4 : end]) != struct.unpack_from(">I", data, end)[0]:
            raise ValueError(f"the checksum of {kind!r} is wrong")
        if kind == b"IEND":
            return _described(header, packed)
        if kind == b"IHDR":
            header = view[position + 8 : end]
        elif kind == b"IDAT":
            packed.append(view[position + 8 : end])
        position = end + 4
    raise ValueError("it is cut off, its end is missing")


def _described(header: memoryview, packed: list[memoryview]) -> PngFile:
    width, height, depth, colour, _, _, interlaced = struct.unpack_from(">IIBBBBB", header)
    bits = depth * _CHANNELS[colour]
    return PngFile(width, height, bits, interlaced=bool(interlaced), packed=tuple(packed))
