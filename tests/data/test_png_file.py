"""PNG files of which a part is missing, though every chunk is whole."""

from __future__ import annotations

import struct
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from builders.files.odd_files import encode, photo, png_chunk, raw_png
from PIL import Image

from clove_ssl.data.decode import DecodeError, decode
from clove_ssl.data.labels.mask_files import mask_file_numbers
from clove_ssl.data.png_file import PngFile

INTERLACED_ROWS = [2, 2, 3, 3, 3, 5, 5, 5, 5, 5, 5, 9, 9, 9, 9]  # bytes, of 8 x 8 grey pixels


def interlaced_png(rows: int) -> bytes:
    """White, 8 x 8 pixels, with so many rows of its seven passes."""
    stream = b"".join(b"\0" + b"\xff" * (length - 1) for length in INTERLACED_ROWS[:rows])
    header = struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 1)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(stream)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*chunk) for chunk in chunks)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_missing_rows_are_noticed(kind: type, channels: int) -> None:
    samples = np.full((40, 30, channels), 200, kind)
    assert decode(raw_png(samples)).shape == (3, 40, 30)
    for rows in (39, 20, 1):
        with pytest.raises(DecodeError, match=f"only {100 * rows // 40} % of its pixels"):
            decode(raw_png(samples[:rows], size=(40, 30)))


def test_missing_rows_of_an_interlaced_file_are_noticed() -> None:
    whole = len(INTERLACED_ROWS)
    assert (decode(interlaced_png(whole)) == 255).all()
    for rows in range(1, whole):
        with pytest.raises(DecodeError, match="of its pixels"):
            decode(interlaced_png(rows))


@pytest.mark.parametrize("mode", ["1", "P", "L", "LA", "RGB", "RGBA", "I;16"])
@pytest.mark.parametrize("width", [1, 3, 8, 29])
def test_a_black_picture_is_whole(mode: str, width: int) -> None:
    assert decode(encode(Image.new(mode, (width, 5)), "PNG")).shape == (3, 5, width)


@pytest.mark.parametrize("colours", [2, 4, 16, 200])
def test_palettes_of_few_bits_are_whole(colours: int) -> None:
    picture = Image.fromarray(photo(13, 19)).quantize(colours)
    picture.paste(0, (0, 12, 19, 13))
    assert decode(encode(picture, "PNG")).shape == (3, 13, 19)


def test_good_photos_are_inflated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(file: PngFile) -> None:
        raise AssertionError("a second time")

    monkeypatch.setattr(PngFile, "refuse_missing_rows", twice)
    assert decode(encode(photo(), "PNG")).shape[0] == 3


def test_a_mask_that_lost_rows_is_no_mask_of_background(tmp_path: Path) -> None:
    path = tmp_path / "mask.png"
    path.write_bytes(raw_png(np.ones((10, 8, 1), np.uint8), size=(20, 8)))
    with pytest.raises(OSError, match="only 50 % of its pixels are there"):
        mask_file_numbers(path)


def test_chunks_behind_the_end_of_the_rows_are_not_looked_at() -> None:
    stream, more = memoryview(zlib.compress(bytes(5))), memoryview(bytes(1000))
    file = PngFile(100, 100, 8, interlaced=False, packed=(stream, *[more] * 20_000))
    start = time.process_time()
    with pytest.raises(ValueError, match="only 0 % of its pixels"):
        file.refuse_missing_rows()
    assert time.process_time() - start < 1
