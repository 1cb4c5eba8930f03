"""Masks that would fill the memory are refused before they are unpacked."""

from __future__ import annotations

import json
import os
import struct
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clove_ssl.data.decode import DecodeError
from clove_ssl.data.labels.mask_files import mask_file_numbers, mask_numbers
from clove_ssl.data.labels.mask_folders import read_mask
from clove_ssl.errors import UserError
from clove_ssl.tasks.cityscapes.maps import read_instance_map
from clove_ssl.tasks.labels.samples import check_size


def png_of_size(width: int, height: int) -> bytes:
    """A palette image that claims a size, with hardly any pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


@pytest.mark.parametrize("size", [(60_000, 60_000), (11_000, 10_000), (2**31 - 1, 2**31 - 1)])
def test_a_mask_that_is_a_bomb_is_refused(size: tuple[int, int], tmp_path: Path) -> None:
    path = tmp_path / "mask.png"
    path.write_bytes(png_of_size(*size))
    for read in (read_mask, read_instance_map):
        with pytest.raises(UserError, match=r"mask\.png cannot be read"):
            read(path)


@pytest.mark.filterwarnings("error")
def test_damaged_masks_have_one_kind_of_error(tmp_path: Path) -> None:
    whole = tmp_path / "a.png"
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(whole)
    data = whole.read_bytes()
    for place in range(0, len(data), 3):
        damaged = data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :]
        with suppress(DecodeError):
            mask_numbers(damaged)
    assert mask_file_numbers(whole)[1].sum() == 64 * 63 // 2


@pytest.mark.parametrize("height", [10**9, 10**30, True, "8", None, 0])
def test_polygons_of_an_impossible_image_are_refused(height: object, tmp_path: Path) -> None:
    path = tmp_path / "a_gtFine_polygons.json"
    path.write_text(json.dumps({"imgHeight": height, "imgWidth": 2048, "objects": []}))
    with pytest.raises(UserError, match="imgHeight"):
        read_instance_map(path)


def test_sizes_in_annotations_have_a_limit(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a size that no image has"):
        check_size(tmp_path / "a.jpg", (10**9, 10**9), origin="Image 7 of a.json")


def test_a_pipe_in_the_place_of_an_image_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jpg")
    check_size(tmp_path / "a.jpg", (8, 8), origin="a list")
