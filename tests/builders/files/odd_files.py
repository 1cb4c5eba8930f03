"""A folder of odd and broken image files, as real collections have them.

``write_odd_folder`` makes it and says which files are good, however odd, and
which are bad. Both are named as ``FolderSource`` names them, and together
they are all it may list: loops, and links to files of the folder itself, add
nothing.
"""

from __future__ import annotations

import io
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

HEIGHT, WIDTH = 48, 64


@dataclass(frozen=True)
class OddFolder:
    """Names of files, relative to the folder."""

    good: list[str]
    bad: list[str]


def photo(height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    """A colourful picture, (H, W, 3) uint8: slow waves, with a noisy patch in the middle."""
    y, x = np.mgrid[:height, :width].astype(float)
    waves = [128 + 100 * np.sin(0.11 * x + 0.07 * y + phase) for phase in (0.0, 2.1, 4.2)]
    pixels = np.stack(waves, axis=-1)
    patch = pixels[height // 3 : height // 2, width // 3 : width // 2]
    patch += np.random.default_rng(0).normal(0, 10, patch.shape)
    return pixels.clip(0, 255).astype(np.uint8)


def encode(picture: Image.Image | np.ndarray, kind: str, **options: object) -> bytes:
    """The bytes of an image file."""
    stream = io.BytesIO()
    image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    image.save(stream, kind, **options)
    return stream.getvalue()


def exif_orientation(value: int) -> bytes:
    """An EXIF block with nothing but an orientation."""
    exif = Image.Exif()
    exif[0x0112] = value
    return exif.tobytes()


def png_chunk(kind: bytes, content: bytes) -> bytes:
    """One chunk of a PNG file with its checksum."""
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )


def raw_png(samples: np.ndarray, *, size: tuple[int, int] | None = None) -> bytes:
    """A PNG of (H, W, channels) samples, 8 or 16 bits; ``size`` lies about height and width."""
    height, width, channels = samples.shape
    bits = 8 * samples.dtype.itemsize
    rows = samples.astype(samples.dtype.newbyteorder(">")).reshape(height, -1)
    pixels = b"".join(b"\0" + row.tobytes() for row in rows)
    told_height, told_width = size or (height, width)
    colour = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    header = struct.pack(">IIBBBBB", told_width, told_height, bits, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        png_chunk(kind, content)
        for kind, content in ((b"IHDR", header), (b"IDAT", zlib.compress(pixels)), (b"IEND", b""))
    )


def jpeg_of_size(data: bytes, height: int, width: int) -> bytes:
    """The JPEG file ``data`` with other numbers for height and width in its header."""
    place = data.index(b"\xff\xc0") + 5
    return data[:place] + struct.pack(">HH", height, width) + data[place + 4 :]


def jpeg_of_scans(side: int, more: int) -> bytes:
    """A progressive JPEG file whose last scan comes ``more`` times again, in a few bytes each."""
    data = encode(np.full((side, side), 7, np.uint8), "JPEG", progressive=True)
    last, end = data.rindex(b"\xff\xda"), data.rindex(b"\xff\xd9")
    return data[:end] + data[last:end] * more + data[end:]


def write_odd_folder(folder: Path) -> OddFolder:
    """Fill ``folder``, which is made; a link of it leads to ``<folder>-elsewhere`` beside it."""
    good, bad = _good_files(), _bad_files()
    for name, data in {**good, **bad}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    good_links, bad_links = _write_links(folder)
    return OddFolder(sorted([*good, *good_links]), sorted([*bad, *bad_links]))


def _write_links(folder: Path) -> tuple[list[str], list[str]]:
    elsewhere = folder.with_name(folder.name + "-elsewhere")
    elsewhere.mkdir()
    (elsewhere / "far.jpg").write_bytes(encode(photo(), "JPEG"))
    (elsewhere / "blob-without-suffix").write_bytes(encode(photo(), "PNG"))
    (folder / "linked.jpg").symlink_to(Path("..", elsewhere.name, "far.jpg"))
    (folder / "linked_blob.png").symlink_to(elsewhere / "blob-without-suffix")
    (folder / "same_again.jpg").symlink_to("plain.jpg")
    (folder / "loop").symlink_to(".", target_is_directory=True)
    (folder / "nested" / "up").symlink_to("..", target_is_directory=True)
    (folder / "dangling.jpg").symlink_to("no_such_file.jpg")
    (folder / "itself.jpg").symlink_to("itself.jpg")
    return ["linked.jpg", "linked_blob.png"], ["dangling.jpg", "itself.jpg"]


def _good_files() -> dict[str, bytes]:
    pixels, image = photo(), Image.fromarray(photo())
    grey = image.convert("L")
    alpha = Image.fromarray(np.tile(np.linspace(0, 255, WIDTH).astype(np.uint8), (HEIGHT, 1)))
    translucent = image.copy()
    translucent.putalpha(alpha)
    grey_alpha = Image.merge("LA", (grey, alpha))
    wide_samples = pixels.astype(np.uint16) * 257
    jpeg = encode(image, "JPEG")
    return {
        "plain.jpg": jpeg,
        "UPPER CASE.JPG": jpeg,
        "-dash.jpg": jpeg,
        "größe 图像.jpeg": jpeg,
        "nested/very/deep.jpg": jpeg,
        "folder.jpg/inside.png": encode(image, "PNG"),
        "jpeg_inside.png": jpeg,
        "more_after_the_end.jpg": jpeg + b"\0" * 1000,
        "progressive.jpg": encode(image, "JPEG", progressive=True),
        "grey.jpg": encode(grey, "JPEG"),
        "cmyk.jpg": encode(image.convert("CMYK"), "JPEG"),
        "rotated.jpg": encode(image, "JPEG", exif=exif_orientation(6)),
        "palette.png": encode(image.quantize(16), "PNG"),
        "palette_clear.png": encode(image.quantize(16), "PNG", transparency=3),
        "one_bit.png": encode(image.convert("1"), "PNG"),
        "grey16.png": raw_png(wide_samples[..., :1]),
        "colour16.png": raw_png(wide_samples),
        "grey_alpha.png": encode(grey_alpha, "PNG"),
        "alpha.png": encode(translucent, "PNG"),
        "photo.webp": encode(image, "WEBP"),
        "alpha.webp": encode(translucent, "WEBP", lossless=True),
        "moving.gif": encode(image, "GIF", save_all=True, append_images=[image.rotate(90)]),
        "old.bmp": encode(image, "BMP"),
        "scan.tiff": encode(image, "TIFF"),
        "grey16.tif": encode(Image.fromarray(wide_samples[..., 0]), "TIFF"),
        "raw.ppm": encode(image, "PPM"),
        "one_row.png": encode(photo(1, 500), "PNG"),
        "one_column.jpg": encode(photo(500, 1), "JPEG"),
        "one_pixel.gif": encode(photo(1, 1), "GIF"),
    }


def _bad_files() -> dict[str, bytes]:
    jpeg, png = encode(photo(), "JPEG"), encode(photo(), "PNG")
    webp, gif = encode(photo(), "WEBP"), encode(photo(), "GIF")
    half = len(jpeg) // 2
    pixels_at = png.index(b"IDAT") + 20
    return {
        "empty.jpg": b"",
        "text.jpg": b"This is not a picture.\n",
        "page.png": b"\n<!DOCTYPE html><html><body>404 Not Found</body></html>",
        "only_magic.jpg": jpeg[:3],
        "cut_in_header.jpg": jpeg[:100],
        "cut_in_half.jpg": jpeg[: len(jpeg) - 400],
        "cut_at_the_end.jpg": jpeg[:-1],
        "cut_progressive.jpg": encode(photo(), "JPEG", progressive=True)[:-200],
        "zeros_to_the_end.jpg": jpeg[: len(jpeg) - 400] + bytes(4000),
        "garbage.jpg": jpeg[:3] + np.random.default_rng(0).bytes(2000),
        "cut_in_half.png": png[: len(png) // 2],
        "cut_at_the_end.png": png[:-5],
        "wrong_sum.png": png[:pixels_at] + bytes([png[pixels_at] ^ 1]) + png[pixels_at + 1 :],
        "bomb.png": raw_png(photo(), size=(60_000, 60_000)),
        "bomb.jpg": jpeg_of_size(jpeg, 65_000, 65_000),
        "no_width.png": raw_png(photo(), size=(HEIGHT, 0)),
        "cut_in_half.webp": webp[: len(webp) // 2],
        "cut_in_half.gif": gif[: len(gif) // 2],
        "cut_in_half.bmp": encode(photo(), "BMP")[:5000],
        "cut_in_half.tif": encode(photo(), "TIFF")[:5000],
        "._plain.jpg": b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X        " + bytes(60),
        "phone.jpg": b"\x00\x00\x00\x18ftypheic" + bytes(200),
        "floating.tif": encode(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF"),
        "half_and_half.jpg": jpeg[:half] + png[:half],
    }
