"""What the first segments of a JPEG file say, without decoding a pixel.

A JPEG file is a row of segments, each a marker (0xFF and a number), a length and
that many bytes; the picture itself follows the segment "start of scan". Reading
stops there, which takes microseconds, and decides which decoder may have the file.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_END_OF_IMAGE = b"\xff\xd9"
_START_OF_SCAN = 0xDA
_EXIF, _JFIF, _ADOBE = (0xE1, b"Exif\0\0"), (0xE0, b"JFIF\0"), (0xEE, b"Adobe")
_WITHOUT_LENGTH = {0x01, *range(0xD0, 0xD8)}
_IMPOSSIBLE = {0x00, 0xD8, 0xD9}  # before the picture: no marker, a second start, the end
_FRAMES = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # those three are tables
_HUFFMAN_DCT = {0xC0, 0xC1, 0xC2}  # baseline, extended and progressive
_ORIENTATION, _SHORT = 0x0112, 3
MAX_SCANS = 100
"""Passes over the picture; progressive files have about ten. Every one costs time for all pixels,
also an empty one of a few bytes, so a small file could keep a decoder busy for hours."""


@dataclass(frozen=True)
class JpegHeader:
    """The facts of a JPEG file that decoders differ about."""

    height: int  # as stored, before it is turned upright
    width: int
    components: int  # 1 is grey, 3 colour, 4 ink
    orientation: int  # of EXIF, 1 to 8, 1 is upright; 0 if it says something else
    complete: bool  # whether the file goes on to an end marker
    usual_coding: bool  # whether it is 8-bit and Huffman-coded, as nearly all files are
    luma_chroma: bool  # whether three components are brightness and colour, not red, green, blue
    scans: int  # passes over the picture, each with more detail

    @property
    def is_ordinary(self) -> bool:
        """Whether all decoders agree on what the file shows."""
        upright_colour = self.components == 3 and self.luma_chroma and self.orientation == 1
        usual = self.usual_coding and self.scans <= MAX_SCANS
        return self.complete and usual and upright_colour


@dataclass(frozen=True)
class _Frame:
    marker: int
    bits: int
    height: int
    width: int
    names: bytes  # one number per component


def read_header(data: bytes) -> JpegHeader | None:
    """The header of a JPEG file, or None if these bytes have none that makes sense."""
    try:
        segments, end = _segments(data)
        frame = next(_read_frame(*each) for each in segments if each[0] in _FRAMES)
    except (IndexError, struct.error, StopIteration, ValueError):
        return None
    return JpegHeader(
        height=frame.height,
        width=frame.width,
        components=len(frame.names),
        orientation=_orientation(segments),
        complete=data.rfind(_END_OF_IMAGE, end) >= 0,
        usual_coding=frame.marker in _HUFFMAN_DCT and frame.bits == 8,
        luma_chroma=_is_luma_chroma(segments, frame.names),
        scans=count_scans(data, end),
    )


def count_scans(data: bytes, end_of_header: int) -> int:
    """Scans of a JPEG file whose first one begins at ``end_of_header``.

    Inside a scan this pair of bytes cannot occur: a zero follows every 0xFF there.
    """
    return 1 + data.count(bytes((0xFF, _START_OF_SCAN)), end_of_header)


def _segments(data: bytes) -> tuple[list[tuple[int, bytes]], int]:
    """Markers and contents of all segments up to the first scan, and where the scan begins."""
    if data[:2] != b"\xff\xd8":
        raise ValueError("no JPEG file")
    segments: list[tuple[int, bytes]] = []
    position = 2
    while True:
        if data[position] != 0xFF:
            raise ValueError("no marker where one has to be")
        while data[position] == 0xFF:  # any number of them may precede a marker
            position += 1
        marker = data[position]
        position += 1
        if marker in _WITHOUT_LENGTH:
            continue
        (length,) = struct.unpack_from(">H", data, position)
        if marker in _IMPOSSIBLE or length < 2 or position + length > len(data):
            raise ValueError("no segment that makes sense")
        segments.append((marker, data[position + 2 : position + length]))
        position += length
        if marker == _START_OF_SCAN:
            return segments, position


def _read_frame(marker: int, content: bytes) -> _Frame:
    bits, height, width, components = struct.unpack_from(">BHHB", content)
    names = content[6 : 6 + 3 * components : 3]
    if len(names) != components or not components:
        raise ValueError("a frame without its components")
    return _Frame(marker, bits, height, width, names)


def _is_luma_chroma(segments: list[tuple[int, bytes]], names: bytes) -> bool:
    """The guess that all decoders are meant to make, from what programs used to write."""
    if _content(segments, _JFIF):
        return True
    adobe = _content(segments, _ADOBE)
    if adobe:
        return len(adobe[0]) < 12 or adobe[0][11] != 0
    return names != b"RGB"


def _orientation(segments: list[tuple[int, bytes]]) -> int:
    """How to turn the picture, if that is plain to see."""
    blocks = _content(segments, _EXIF)
    if not blocks:
        return 1
    try:
        return _read_orientation(blocks[0][6:]) if len(blocks) == 1 else 0
    except (struct.error, KeyError):
        return 0


def _read_orientation(tiff: bytes) -> int:
    """The orientation in an EXIF block, which is the beginning of a TIFF file."""
    order = {b"II*\0": "<", b"MM\0*": ">"}[tiff[:4]]
    (start,) = struct.unpack_from(order + "I", tiff, 4)
    (entries,) = struct.unpack_from(order + "H", tiff, start)
    found = []
    for number in range(entries):
        tag, kind, count, value = struct.unpack_from(order + "HHIH", tiff, start + 2 + 12 * number)
        if tag == _ORIENTATION:
            found.append(value if (kind, count) == (_SHORT, 1) and 1 <= value <= 8 else 0)
    return found[0] if len(found) == 1 else int(not found)


def _content(segments: list[tuple[int, bytes]], kind: tuple[int, bytes]) -> list[bytes]:
    """What the segments of one kind hold."""
    marker, start = kind
    return [
        content
        for number, content in segments
        if number == marker and content[: len(start)] == start
    ]
