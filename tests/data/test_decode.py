"""Decoding: exact pixels for every kind of file, and a reason for every refusal."""

from __future__ import annotations

import contextlib
import pickle
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from builders.files.odd_files import (
    encode,
    exif_orientation,
    jpeg_of_scans,
    jpeg_of_size,
    photo,
    png_chunk,
    raw_png,
    write_odd_folder,
)
from PIL import Image, ImageFile

from clove_ssl.data.decode import DecodeError, decode, image_size
from clove_ssl.data.labels.mask_files import mask_numbers
from clove_ssl.errors import UserError

MANY = 10**8


def pixels_of(data: bytes, *, reduce: int = 1) -> np.ndarray:
    """Decoded pixels as (H, W, 3); fails on any warning on the way."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return decode(data, max_pixels=MANY, reduce=reduce).permute(1, 2, 0).numpy()


def grey_of(data: bytes) -> np.ndarray:
    """The one channel of a file that has to come out grey."""
    pixels = pixels_of(data)
    assert (pixels == pixels[..., :1]).all()
    return pixels[..., 0]


@pytest.fixture(scope="module")
def image() -> Image.Image:
    return Image.fromarray(photo())


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("PNG", {}),
        ("WEBP", {"lossless": True}),
        ("BMP", {}),
        ("PPM", {}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("TIFF", {"compression": "tiff_adobe_deflate"}),
    ],
)
def test_lossless_files_give_back_every_pixel(kind: str, options: dict[str, object]) -> None:
    assert np.array_equal(pixels_of(encode(photo(), kind, **options)), photo())


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("JPEG", {"quality": 95, "subsampling": 0}),
        ("JPEG", {"quality": 95, "subsampling": 0, "progressive": True}),
        ("WEBP", {"quality": 95}),
        ("TIFF", {"compression": "jpeg", "quality": 95}),
    ],
)
def test_lossy_files_come_close(kind: str, options: dict[str, object]) -> None:
    error = pixels_of(encode(photo(), kind, **options)).astype(int) - photo()
    assert np.abs(error).mean() < 3


def test_the_result_is_a_writable_channels_last_tensor() -> None:
    image = decode(encode(photo(), "JPEG"), max_pixels=MANY)
    assert image.dtype == torch.uint8
    assert image.shape == (3, 48, 64)
    assert image.permute(1, 2, 0).is_contiguous()
    image[0, 0, 0] = 7
    assert image[0, 0, 0] == 7


def test_sixteen_bit_samples_are_scaled_and_not_clipped() -> None:
    ramp = np.linspace(0, 65535, 300).astype(np.uint16).reshape(15, 20, 1)
    for data in (
        raw_png(ramp),
        encode(ramp[..., 0], "TIFF"),
        b"P5 20 15 65535\n" + ramp.astype(">u2").tobytes(),
    ):
        assert np.array_equal(grey_of(data), ramp[..., 0] // 256)
    colour = np.concatenate([ramp, ramp[::-1], 65535 - ramp], axis=-1)
    assert np.array_equal(pixels_of(raw_png(colour)), colour // 256)


def test_sixteen_bit_alpha_is_respected() -> None:
    samples = np.full((2, 2, 4), 30_000, np.uint16)
    samples[0, :, 3], samples[1, :, 3] = 0, 65535
    assert (pixels_of(raw_png(samples)) == np.array([255, 117])[:, None, None]).all()


def test_grey_tiffs_of_other_polarity_are_refused_rather_than_inverted() -> None:
    negative = encode(np.zeros((4, 4), np.uint16), "TIFF", tiffinfo={262: 0})
    with pytest.raises(DecodeError, match="0 as black"):
        decode(negative, max_pixels=MANY)


def test_grey_and_one_bit_files_become_grey_rgb(image: Image.Image) -> None:
    grey, bilevel = image.convert("L"), image.convert("1")
    assert np.array_equal(grey_of(encode(grey, "PNG")), np.asarray(grey))
    assert np.array_equal(grey_of(encode(bilevel, "PNG")), 255 * np.asarray(bilevel))
    assert np.array_equal(grey_of(encode(bilevel, "PPM")), 255 * np.asarray(bilevel))
    assert np.abs(grey_of(encode(grey, "JPEG")).astype(int) - np.asarray(grey)).mean() < 3


def test_palettes_are_looked_up(image: Image.Image) -> None:
    indexed = image.quantize(16)
    assert np.array_equal(pixels_of(encode(indexed, "PNG")), np.asarray(indexed.convert("RGB")))
    assert np.array_equal(pixels_of(encode(indexed, "GIF")), np.asarray(indexed.convert("RGB")))


def test_a_transparent_palette_entry_is_white(image: Image.Image) -> None:
    indexed = image.quantize(16)
    clear = np.asarray(indexed) == 3
    for kind in ("PNG", "GIF"):
        pixels = pixels_of(encode(indexed, kind, transparency=3))
        assert (pixels[clear] == 255).all()
        assert np.array_equal(pixels[~clear], np.asarray(indexed.convert("RGB"))[~clear])


def test_alpha_is_blended_with_white() -> None:
    alpha = np.tile(np.arange(64, dtype=np.uint8) * 4, (48, 1))
    colour = np.dstack([photo(), alpha])
    share = alpha[..., None] / 255
    expected = share * photo() + (1 - share) * 255
    for data in (encode(colour, "PNG"), encode(colour, "TIFF")):
        assert np.abs(pixels_of(data) - expected).max() <= 1
    grey_alpha = np.dstack([photo()[..., 0], alpha])
    expected_grey = share[..., 0] * photo()[..., 0] + (1 - share[..., 0]) * 255
    assert np.abs(grey_of(raw_png(grey_alpha)) - expected_grey).max() <= 1


def test_the_transparent_colour_of_an_rgb_png_is_white() -> None:
    pixels = photo()
    pixels[:5] = (10, 20, 30)
    decoded = pixels_of(encode(pixels, "PNG", transparency=(10, 20, 30)))
    assert (decoded[:5] == 255).all()
    assert np.array_equal(decoded[5:], pixels[5:])


def test_cmyk_is_not_inverted(image: Image.Image) -> None:
    cmyk = image.convert("CMYK")
    assert np.abs(pixels_of(encode(cmyk, "JPEG", quality=95)).astype(int) - photo()).mean() < 6
    assert np.array_equal(pixels_of(encode(cmyk, "TIFF")), np.asarray(cmyk.convert("RGB")))


def test_lab_is_converted() -> None:
    lab = np.array([[[255, 0, 0], [0, 0, 0], [138, 81, 70]]], np.uint8)  # white, black, red
    rgb = pixels_of(encode(Image.frombytes("LAB", (3, 1), lab.tobytes()), "TIFF"))
    assert np.abs(rgb[0].astype(int) - [[255] * 3, [0] * 3, [255, 0, 0]]).max() <= 6


def test_only_the_first_picture_of_an_animation_counts(image: Image.Image) -> None:
    other = Image.new("RGB", image.size)
    for kind, options in (("GIF", {}), ("WEBP", {"lossless": True}), ("TIFF", {}), ("PNG", {})):
        moving = encode(image, kind, save_all=True, append_images=[other], **options)
        assert np.array_equal(pixels_of(moving), pixels_of(encode(image, kind, **options)))


STORED = {  # how an upright picture is stored, for each value of the EXIF tag
    1: lambda p: p,
    2: lambda p: p[:, ::-1],
    3: lambda p: p[::-1, ::-1],
    4: lambda p: p[::-1],
    5: lambda p: p.transpose(1, 0, 2),
    6: lambda p: np.rot90(p, 1),
    7: lambda p: p[::-1, ::-1].transpose(1, 0, 2),
    8: lambda p: np.rot90(p, -1),
}


@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF", "JPEG"])
def test_every_exif_orientation_comes_out_upright(kind: str, orientation: int) -> None:
    stored = np.ascontiguousarray(STORED[orientation](photo()))
    options = {"WEBP": {"lossless": True}, "JPEG": {"quality": 95}}.get(kind, {})
    data = encode(stored, kind, exif=exif_orientation(orientation), **options)
    assert image_size(data, max_pixels=MANY) == (48, 64)
    error = np.abs(pixels_of(data).astype(int) - photo())
    assert error.mean() < 3 if kind == "JPEG" else error.max() == 0


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data:UserWarning")
def test_an_impossible_or_damaged_orientation_is_ignored() -> None:
    for exif in (exif_orientation(9), b"Exif\0\0II*\0garbage", b"Exif\0\0", b"nonsense"):
        data = encode(photo(), "JPEG", exif=exif)
        assert image_size(data, max_pixels=MANY) == (48, 64)
        assert decode(data, max_pixels=MANY).shape == (3, 48, 64)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "PPM", "TIFF"])
def test_the_size_is_known_from_the_header_alone(kind: str) -> None:
    header = encode(photo(), kind)[:850]
    assert image_size(header, max_pixels=MANY) == (48, 64)
    with pytest.raises(DecodeError):
        decode(header, max_pixels=MANY)


def test_max_pixels_is_the_last_size_that_is_accepted() -> None:
    data = encode(photo(), "PNG")
    assert decode(data, max_pixels=48 * 64).shape == (3, 48, 64)
    for read in (decode, image_size):
        with pytest.raises(DecodeError, match="64 x 48 pixels are more than max_pixels=3071"):
            read(data, max_pixels=48 * 64 - 1)


def test_pillows_own_limit_does_not_lower_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    for kind in ("JPEG", "PNG", "GIF", "BMP", "PPM"):
        assert pixels_of(encode(photo(), kind)).shape == (48, 64, 3)


def test_tolerance_for_truncated_files_set_by_others_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(UserError, match="LOAD_TRUNCATED_IMAGES"):
        decode(encode(photo(), "JPEG"), max_pixels=MANY)


def small_files() -> dict[str, bytes]:
    picture = photo(13, 18)
    return {
        "jpeg": encode(picture, "JPEG"),
        "progressive": encode(picture, "JPEG", progressive=True),
        "cmyk": encode(Image.fromarray(picture).convert("CMYK"), "JPEG"),
        "thumbnail": encode(picture, "JPEG", exif=exif_orientation(1) + encode(picture, "JPEG")),
        "png": encode(picture, "PNG"),
        "palette": encode(Image.fromarray(picture).quantize(8), "PNG"),
        "gif": encode(picture, "GIF"),
        "webp": encode(picture, "WEBP"),
        "bmp": encode(picture, "BMP"),
        "tiff": encode(picture, "TIFF"),
        "lzw": encode(picture, "TIFF", compression="tiff_lzw"),
        "ppm": encode(picture, "PPM"),
    }


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", small_files())
def test_a_file_cut_anywhere_is_refused_or_loses_nothing(kind: str) -> None:
    data = small_files()[kind]
    whole = decode(data, max_pixels=MANY)
    refused = 0
    for length in range(len(data)):
        try:
            assert torch.equal(decode(data[:length], max_pixels=MANY), whole), length
        except DecodeError:
            refused += 1
    assert refused >= len(data) - 25  # what little may be missing follows the pixels


@pytest.mark.parametrize("kind", ["jpeg", "thumbnail", "progressive"])
def test_a_jpeg_filled_up_with_zeros_is_refused(kind: str) -> None:
    data = small_files()[kind]
    for length in range(len(data) - 60, len(data) - 1):
        with pytest.raises(DecodeError):
            decode(data[:length] + bytes(5000), max_pixels=MANY)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", small_files())
def test_damaged_bytes_raise_nothing_but_decode_errors(kind: str) -> None:
    data = np.frombuffer(small_files()[kind], np.uint8)
    random = np.random.default_rng(0)
    for _ in range(150):
        damaged = data.copy()
        places = random.integers(0, len(data), random.integers(1, 6))
        damaged[places] = random.integers(0, 256, len(places))
        with contextlib.suppress(DecodeError):
            shape = decode(damaged.tobytes(), max_pixels=10**6).shape
            assert shape == (3, *image_size(damaged.tobytes(), max_pixels=10**6))


def test_a_single_wrong_bit_in_a_png_is_noticed() -> None:
    data = encode(photo(13, 18), "PNG")
    for place in range(8, len(data)):
        damaged = data[:place] + bytes([data[place] ^ 16]) + data[place + 1 :]
        with pytest.raises(DecodeError):
            decode(damaged, max_pixels=MANY)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"hello", "no known image format.*hello"),
        (b"\xef\xbb\xbf \n<html>", "web page"),
        (b"\x00\x05\x16\x07" + bytes(80), "resource fork"),
        (b"\x00\x00\x00\x1cftypavif", "AVIF"),
        (b"%PDF-1.7", "PDF"),
        (b"PK\x03\x04rest", "zip"),
        (b"\xff\xd8\xff", "JPEG"),
        (jpeg_of_size(encode(photo(), "JPEG"), 65_000, 65_000), "65000 x 65000"),
        (jpeg_of_size(encode(photo(), "JPEG"), 0, 64), "JPEG"),
        (encode(np.ones((3, 3), np.float32), "TIFF"), "without a known white"),
        (encode(np.ones((3, 3), np.int32), "TIFF"), "without a known white"),
    ],
)
def test_what_is_no_image_is_refused_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason) as caught:
        decode(data, max_pixels=MANY)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_png_that_promises_more_rows_than_its_bytes_can_hold_is_refused() -> None:
    whole = bytearray(encode(np.zeros((4, 1, 3), np.uint8), "PNG"))
    assert decode(bytes(whole), max_pixels=MANY).shape == (3, 4, 1)
    whole[20:24] = (40_000).to_bytes(4, "big")  # the height
    whole[29:33] = zlib.crc32(whole[12:29]).to_bytes(4, "big")
    with pytest.raises(DecodeError, match="cannot hold 1 x 40000 pixels"):
        decode(bytes(whole), max_pixels=MANY)
    plain = encode(np.zeros((3000, 3000), np.uint8), "PNG")  # as small as it gets
    assert decode(plain, max_pixels=MANY).shape == (3, 3000, 3000)


def test_a_jpeg_of_thousands_of_scans_is_refused_before_they_are_decoded() -> None:
    few, many = jpeg_of_scans(40, 90), jpeg_of_scans(40, 100)
    assert decode(few, max_pixels=MANY).shape == (3, 40, 40)
    for read in (decode, image_size, mask_numbers):
        with pytest.raises(DecodeError, match="106 scans"):
            read(many)


def test_formats_that_other_programs_would_decode_are_no_images() -> None:
    data = encode(photo(), "EPS")
    for read in (decode, image_size, mask_numbers):
        with pytest.raises(DecodeError, match="no known image format"):
            read(data)


def test_a_png_text_that_unpacks_to_gigabytes_is_refused() -> None:
    data = encode(photo(), "PNG")
    text = png_chunk(b"zTXt", b"x\0\0" + zlib.compress(bytes(50_000_000)))
    with pytest.raises(DecodeError):
        decode(data[:33] + text + data[33:], max_pixels=MANY)


@pytest.mark.parametrize("reduce", [2, 4, 8])
def test_a_reduced_jpeg_shows_the_mean_of_each_square(reduce: int) -> None:
    smooth = photo(64, 96)
    reduced = pixels_of(encode(smooth, "JPEG", quality=98, subsampling=0), reduce=reduce)
    squares = smooth.reshape(64 // reduce, reduce, 96 // reduce, reduce, 3).mean((1, 3))
    assert reduced.shape == squares.shape
    assert np.abs(reduced - squares).mean() < 2


@pytest.mark.parametrize("reduce", [2, 4, 8])
@pytest.mark.parametrize("size", [(8, 8), (9, 17), (15, 31), (16, 23), (100, 75)])
def test_reduced_sizes_are_rounded_up(size: tuple[int, int], reduce: int) -> None:
    data = encode(photo(*size), "JPEG", exif=exif_orientation(6))
    height, width = image_size(data, max_pixels=MANY)
    assert (width, height) == size
    shape = decode(data, max_pixels=MANY, reduce=reduce).shape
    assert shape == (3, -(-height // reduce), -(-width // reduce))


def test_reduction_is_for_jpegs_that_are_large_enough() -> None:
    assert pixels_of(encode(photo(), "PNG"), reduce=4).shape == (48, 64, 3)
    assert pixels_of(encode(photo(5, 300), "JPEG"), reduce=8).shape == (2, 75, 3)
    assert pixels_of(encode(photo(1, 300), "JPEG"), reduce=8).shape == (1, 300, 3)
    with pytest.raises(ValueError, match="reduce=3"):
        decode(encode(photo(), "JPEG"), max_pixels=MANY, reduce=3)


def test_reduced_grey_and_cmyk_jpegs_decode_too(image: Image.Image) -> None:
    for mode in ("L", "CMYK"):
        assert pixels_of(encode(image.convert(mode), "JPEG"), reduce=2).shape == (24, 32, 3)


def test_the_odd_folder_is_what_it_says(tmp_path: Path) -> None:
    odd = write_odd_folder(tmp_path / "odd")
    assert len(odd.good) >= 24
    assert len(odd.bad) >= 24
    for name in odd.good:
        data = (tmp_path / "odd" / name).read_bytes()
        shape = decode(data, max_pixels=MANY).shape
        assert shape == (3, *image_size(data, max_pixels=MANY)), name
    for name in odd.bad:
        with pytest.raises((DecodeError, OSError)):
            decode((tmp_path / "odd" / name).read_bytes(), max_pixels=MANY)
