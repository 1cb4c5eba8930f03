"""JPEG headers against what Pillow reads, on ordinary, odd and broken files."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from builders.files.odd_files import (
    encode,
    exif_orientation,
    jpeg_of_scans,
    jpeg_of_size,
    photo,
    write_odd_folder,
)
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from clove_ssl.data.jpeg_header import read_header

JPEG = encode(photo(), "JPEG")


def with_segment(marker: int, content: bytes, *, instead_of: int | None = None) -> bytes:
    """The JPEG with one more segment right after its start, without those of another kind."""
    data = JPEG
    if instead_of is not None:
        place = data.index(bytes([0xFF, instead_of]))
        length = struct.unpack_from(">H", data, place + 2)[0]
        data = data[:place] + data[place + 2 + length :]
    return data[:2] + struct.pack(">BBH", 0xFF, marker, 2 + len(content)) + content + data[2:]


def exif_with(kind: int, count: int, value: bytes) -> bytes:
    """An EXIF block whose orientation has this type, count and four bytes of value."""
    entry = struct.pack("<HHI", 0x0112, kind, count) + value
    return b"Exif\0\0II*\0" + struct.pack("<IH", 8, 1) + entry + bytes(4)


def test_every_jpeg_of_an_odd_folder_is_read_as_pillow_reads_it(tmp_path: Path) -> None:
    compared = 0
    for name in write_odd_folder(tmp_path / "odd").good:
        data = (tmp_path / "odd" / name).read_bytes()
        header = read_header(data)
        picture = Image.open(io.BytesIO(data))
        if picture.format != "JPEG":
            assert header is None, name
            continue
        assert header is not None, name
        assert (header.width, header.height) == picture.size, name
        assert header.components == len(picture.getbands()), name
        assert header.orientation == picture.getexif().get(0x0112, 1), name
        assert header.complete, name
        assert header.usual_coding, name
        compared += 1
    assert compared >= 10


def test_no_bad_file_of_an_odd_folder_passes_for_a_complete_one(tmp_path: Path) -> None:
    for name in write_odd_folder(tmp_path / "odd").bad:
        path = tmp_path / "odd" / name
        header = read_header(path.read_bytes()) if path.exists() else None
        is_bomb = header is not None and header.height * header.width > 10**9
        assert header is None or not header.complete or is_bomb, name


@given(st.integers(0, len(JPEG) - 1))
def test_a_file_cut_off_anywhere_is_never_complete(length: int) -> None:
    header = read_header(JPEG[:length])
    assert header is None or not header.complete


@given(st.binary(max_size=300))
def test_any_bytes_can_be_asked(garbage: bytes) -> None:
    read_header(garbage)
    read_header(JPEG[:2] + garbage)
    read_header(JPEG[:30] + garbage + JPEG[30:])


@pytest.mark.parametrize("value", range(1, 9))
@pytest.mark.parametrize("order", ["<", ">"])
def test_the_orientation_is_found(value: int, order: str) -> None:
    start = b"II*\0" if order == "<" else b"MM\0*"
    other = struct.pack(order + "HHIHH", 0x0100, 3, 1, 7, 0)
    entry = struct.pack(order + "HHIHH", 0x0112, 3, 1, value, 0)
    block = b"Exif\0\0" + start + struct.pack(order + "IH", 8, 2) + other + entry + bytes(4)
    header = read_header(with_segment(0xE1, block))
    assert header is not None
    assert header.orientation == value
    plain = read_header(encode(photo(), "JPEG", exif=exif_orientation(value)))
    assert plain is not None
    assert plain.orientation == value


@pytest.mark.parametrize(
    "block",
    [
        exif_with(3, 1, struct.pack("<HH", 9, 0)),
        exif_with(3, 1, struct.pack("<HH", 0, 0)),
        exif_with(4, 1, struct.pack("<I", 6)),
        exif_with(3, 2, struct.pack("<HH", 6, 6)),
        exif_with(3, 1, struct.pack("<HH", 6, 0))[:20],
        b"Exif\0\0" + bytes(20),
        b"Exif\0\0",
    ],
    ids=["nine", "zero", "long", "two values", "cut off", "zeros", "empty"],
)
def test_an_unclear_orientation_is_called_unclear(block: bytes) -> None:
    header = read_header(with_segment(0xE1, block))
    assert header is not None
    assert header.orientation == 0


def test_two_exif_blocks_are_unclear_and_other_notes_are_none() -> None:
    twice = encode(photo(), "JPEG", exif=exif_orientation(1))
    place = twice.index(b"\xff\xe1")
    length = 2 + struct.unpack_from(">H", twice, place + 2)[0]
    twice = twice[: place + length] + twice[place : place + length] + twice[place + length :]
    header = read_header(twice)
    assert header is not None
    assert header.orientation == 0
    note = read_header(with_segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0<x/>"))
    assert note is not None
    assert note.orientation == 1


def test_an_end_marker_in_a_thumbnail_does_not_complete_the_file() -> None:
    cut = with_segment(0xE2, JPEG)[:-2]
    header = read_header(cut)
    assert header is not None
    assert not header.complete


@pytest.mark.parametrize(
    ("segment", "expected"),
    [
        ((0xEE, b"Adobe\0\x64\0\0\0\0\0"), False),
        ((0xEE, b"Adobe\0\x64\0\0\0\0\x01"), True),
        ((0xFE, b"a comment"), True),
    ],
    ids=["Adobe RGB", "Adobe YCC", "no word"],
)
def test_files_without_brightness_and_chroma_are_recognised(segment, expected: bool) -> None:
    header = read_header(with_segment(*segment, instead_of=0xE0))
    assert header is not None
    assert header.luma_chroma is expected


def test_components_named_red_green_and_blue_are_that() -> None:
    data = encode(photo(), "JPEG", keep_rgb=True)
    assert b"JFIF" not in data[:40]
    header = read_header(data)
    assert header is not None
    assert not header.luma_chroma
    assert np.abs(np.asarray(Image.open(io.BytesIO(data))).astype(int) - photo()).mean() < 5


def test_arithmetic_coding_and_other_rarities_are_not_usual() -> None:
    arithmetic = JPEG.replace(b"\xff\xc0", b"\xff\xc9", 1)
    twelve_bits = JPEG.replace(b"\xff\xc0\x00\x11\x08", b"\xff\xc1\x00\x11\x0c", 1)
    for data in (arithmetic, twelve_bits):
        header = read_header(data)
        assert header is not None
        assert not header.usual_coding
    lied = read_header(jpeg_of_size(JPEG, 0, 7))
    assert lied is not None
    assert (lied.height, lied.width) == (0, 7)


def test_a_file_of_many_scans_is_not_ordinary() -> None:
    few, many = read_header(jpeg_of_scans(40, 3)), read_header(jpeg_of_scans(40, 300))
    assert few is not None
    assert many is not None
    assert (few.scans, many.scans) == (9, 306)
    colour = encode(photo(), "JPEG", progressive=True)
    last, end = colour.rindex(b"\xff\xda"), colour.rindex(b"\xff\xd9")
    for more, ordinary in ((50, True), (200, False)):
        header = read_header(colour[:end] + colour[last:end] * more + colour[end:])
        assert header is not None
        assert header.is_ordinary is ordinary
