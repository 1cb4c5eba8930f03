"""Bytes of an image file to pixels; nothing else knows how images are decoded.

Formats: JPEG, PNG, WebP, GIF, BMP, TIFF and PPM/PGM/PBM, of animations and
multi-page files the first picture. Every kind of pixel becomes 8-bit RGB:

- transparent pixels are laid over white, the page most such images are made for;
- 16-bit samples keep their upper byte, so black and white stay black and white;
- palettes, grey, CMYK (Adobe's inverted kind too) and CIELAB are converted, colour
  profiles ignored;
- 32-bit and floating-point samples are refused: their file does not say what is white;
- the EXIF orientation is applied, and a damaged one ignored.

Any size from 1 x 1 to ``max_pixels`` is accepted; larger images are refused by
their header (TIFF and WebP also above twice ``PIL.Image.MAX_IMAGE_PIXELS``). A
file that is cut off or fails its checksum is refused as well, never handed out
half grey. What no decoder can notice is a JPEG whose middle is damaged, or one
that somebody cut off and closed with a new end marker; the same goes for TIFF
files that are coded as JPEG or fax inside.

Pillow's global settings are read, never changed.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile
from torch import Tensor

from clove_ssl.data.jpeg_header import MAX_SCANS, count_scans
from clove_ssl.data.png_file import read_png
from clove_ssl.errors import UserError

MAX_PIXELS = 100_000_000
# By the first bytes of a file, as regular expressions.
_READERS: dict[bytes, type[ImageFile.ImageFile]] = {
    rb"\xff\xd8\xff": JpegImageFile,
    rb"\x89PNG\r\n\x1a\n": PngImageFile,
    rb"RIFF....WEBP": WebPImageFile,
    rb"GIF8[79]a": GifImageFile,
    rb"BM": BmpImageFile,
    rb"II[*+]\x00|MM\x00[*+]": TiffImageFile,
    rb"P[1-6]\s": PpmImageFile,
}
FORMATS = tuple(str(reader.format) for reader in _READERS.values())
"""What Pillow calls them. It knows many more, and starts other programs for some."""
_NOT_IMAGES = {
    rb"\x00\x05\x16\x07": "a macOS resource fork (a ._ file), which holds no picture",
    rb"....ftyp": "an AVIF, HEIC or video file; convert it to JPEG, PNG or WebP",
    rb"(\xef\xbb\xbf)?\s*<": "a web page or XML, not an image",
    rb"%PDF": "a PDF document, not an image",
    rb"PK\x03\x04": "a zip archive, not an image",
}
_EXIF_ORIENTATION = 0x0112
_TIFF_WIDTH, _TIFF_HEIGHT, _TIFF_BITS, _TIFF_POLARITY = 256, 257, 258, 262
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SIDEWAYS = (5, 6, 7, 8)  # orientations that exchange height and width


class DecodeError(ValueError):
    """Bytes that are no readable image; the message is the reason."""


def decode(data: bytes, *, max_pixels: int = MAX_PIXELS, reduce: int = 1) -> Tensor:
    """The pixels of an image file, upright, as uint8 (3, H, W) in channels-last memory.

    With ``reduce`` 2, 4 or 8 a JPEG is decoded at that fraction of its size,
    which saves time and memory; other formats ignore it, and images with fewer
    pixels on a side are reduced less. A pixel of the result then stands for a
    square of the stored image, and sizes are rounded up. So callers keep
    geometry in full-size coordinates, from ``image_size``.

    Raises:
        DecodeError: If the file is no image, damaged, cut off or too large.
    """
    if reduce not in (1, 2, 4, 8):
        raise ValueError(f"reduce={reduce} is not 1, 2, 4 or 8")
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise UserError(
            "PIL.ImageFile.LOAD_TRUNCATED_IMAGES is on, so images that are cut off would pass as "
            "half-grey ones. Some library has set it; set it to False before training."
        )
    picture = open_picture(data, max_pixels=max_pixels)
    try:
        pixels = _load(picture, data, reduce)
    except DecodeError:
        raise
    except Exception as error:
        raise _damaged(picture.format, error) from error
    return torch.from_numpy(pixels).permute(2, 0, 1)


def pixels_of_picture(picture: Image.Image) -> Tensor:
    """The pixels of a picture that Pillow holds, as :func:`decode` would give them.

    Raises:
        DecodeError: If nobody knows what its numbers look like.
    """
    rgb = _to_rgb(picture)
    orientation = _orientation(picture)
    if orientation != 1:
        rgb = rgb.transpose(_UPRIGHT[orientation])
    return torch.from_numpy(np.array(rgb)).permute(2, 0, 1)


def image_size(data: bytes, *, max_pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """Height and width that ``decode`` will give, from the header alone.

    Raises:
        DecodeError: If the header already shows that ``decode`` would refuse.
    """
    return _upright_size(open_picture(data, max_pixels=max_pixels))


def open_picture(data: bytes, *, max_pixels: int = MAX_PIXELS) -> ImageFile.ImageFile:
    """A picture of a known format and size, not decoded yet; loading it may still fail.

    Raises:
        DecodeError: If it is no such picture, or one that takes far longer than its pixels do.
    """
    reader = _reader_for(data)
    try:
        # Not Image.open, which would apply Pillow's own global limit on top of max_pixels.
        picture = reader(io.BytesIO(data))
        height, width = _upright_size(picture)
    except Exception as error:
        raise _damaged(reader.format, error) from error
    if height < 1 or width < 1:
        raise DecodeError(f"an image of {width} x {height} pixels has nothing to show")
    if height * width > max_pixels:
        raise DecodeError(f"{width} x {height} pixels are more than max_pixels={max_pixels}")
    if isinstance(picture, JpegImageFile):
        _refuse_many_scans(picture, data)
    return picture


def _reader_for(data: bytes) -> type[ImageFile.ImageFile]:
    if not data:
        raise DecodeError("an empty file")
    for start, reader in _READERS.items():
        if re.match(start, data, re.DOTALL):
            return reader
    for start, reason in _NOT_IMAGES.items():
        if re.match(start, data, re.DOTALL):
            raise DecodeError(reason)
    raise DecodeError(f"no known image format; the file starts with {data[:8]!r}")


def _damaged(kind: str | None, error: Exception) -> DecodeError:
    reason = str(error) or type(error).__name__
    if reason == "not identified by this driver":  # Pillow's words for an impossible header
        reason = "its header makes no sense"
    return DecodeError(f"a damaged or unusual {kind} file: {reason}")


def _upright_size(picture: ImageFile.ImageFile) -> tuple[int, int]:
    """Height and width once the orientation is applied; only the header has been read."""
    width, height = picture.size
    if isinstance(picture, TiffImageFile):  # older versions of Pillow turn its size on loading
        width, height = picture.tag_v2[_TIFF_WIDTH], picture.tag_v2[_TIFF_HEIGHT]
        is_turned = picture.tag_v2.get(_EXIF_ORIENTATION) in _SIDEWAYS
    else:
        is_turned = _orientation(picture) in _SIDEWAYS
    return (width, height) if is_turned else (height, width)


def _orientation(picture: Image.Image) -> int:
    """How to turn the decoded picture; 1, which means not at all, for TIFF and odd values."""
    exif_bytes = picture.info.get("exif")
    if not exif_bytes or isinstance(picture, TiffImageFile):  # TIFFs turn themselves on loading
        return 1
    exif = Image.Exif()
    try:
        exif.load(exif_bytes)
        orientation = exif.get(_EXIF_ORIENTATION)
    except Exception:  # as viewers do: the pixels are fine, only this note is not
        return 1
    return orientation if orientation in _UPRIGHT else 1


def _load(picture: ImageFile.ImageFile, data: bytes, reduce: int) -> npt.NDArray[np.uint8]:
    height, width = _upright_size(picture)
    orientation = _orientation(picture)
    scale = 1
    if isinstance(picture, JpegImageFile):
        scale = _choose_reduction(picture, reduce)
    # Orientation and size were asked before: loading a TIFF turns it and changes both.
    load_whole(picture, data)
    rgb = _to_rgb(picture)
    if orientation != 1:
        rgb = rgb.transpose(_UPRIGHT[orientation])
    pixels = np.array(rgb)  # (H, W, 3); a copy, because Pillow's bytes are read-only
    if pixels.shape != (-(-height // scale), -(-width // scale), 3):
        raise DecodeError("its header and its pixels disagree about the size")
    return pixels


def load_whole(picture: ImageFile.ImageFile, data: bytes) -> None:
    """Load an opened picture of which nothing is missing; other errors than Pillow's say what is.

    Some decoders fill up what does not come with grey or black, and say nothing.
    """
    if isinstance(picture, PngImageFile):
        _load_png(picture, data)
        return
    if isinstance(picture, JpegImageFile):
        _refuse_unended_jpeg(picture, data)
    picture.load()


def _choose_reduction(picture: JpegImageFile, reduce: int) -> int:
    """Tell the decoder to skip detail; return the reduction it settles on."""
    if reduce == 1:
        return 1
    width, height = picture.size
    # libjpeg then computes fewer pixels of each 8 x 8 block, which is most of its work.
    picture.draft(None, (max(1, width // reduce), max(1, height // reduce)))
    scale: int = picture.decoderconfig[0]  # less than asked for images below `reduce` pixels
    return scale


def _refuse_many_scans(picture: JpegImageFile, data: bytes) -> None:
    """Refuse files that a decoder would go through thousands of times."""
    assert picture.fp is not None
    scans = count_scans(data, picture.fp.tell())
    if scans > MAX_SCANS:
        raise DecodeError(f"a JPEG file of {scans:,} scans, more than the {MAX_SCANS} allowed")


def _refuse_unended_jpeg(picture: JpegImageFile, data: bytes) -> None:
    """Refuse downloads that stopped in a file made full-size beforehand: zeros decode as grey."""
    assert picture.fp is not None
    # libjpeg fills up what is missing with grey and only warns, so the end is looked for here.
    end_of_header = picture.fp.tell()  # a thumbnail in the header has an end marker of its own
    if data.rfind(b"\xff\xd9", end_of_header) < 0:
        raise DecodeError("a JPEG file that is cut off: its end marker is missing")


def _load_png(picture: PngImageFile, data: bytes) -> None:
    """Load a PNG file of which nothing is missing."""
    file = read_png(data)
    file.refuse_impossible()
    picture.load()
    # A second look at good files costs time, so only those whose last row is black, like rows that
    # did not come, get one; in an interlaced file that row may come early.
    if file.interlaced or _ends_black(picture):
        file.refuse_missing_rows()


def _ends_black(picture: PngImageFile) -> bool:
    """Whether the last row of a loaded picture is zero; mostly its first pixel tells."""
    bottom, zeros = picture.height - 1, (0, (0,) * len(picture.getbands()))
    return all(picture.getpixel((column, bottom)) in zeros for column in range(picture.width))


def _to_rgb(picture: Image.Image) -> Image.Image:
    mode = picture.mode
    if mode == "RGB" and "transparency" not in picture.info:
        return picture
    if mode.startswith("I;16") or (
        mode == "I" and isinstance(picture, PngImageFile | PpmImageFile)
    ):
        return _upper_byte(picture).convert("RGB")
    if mode in ("I", "F"):
        raise DecodeError("its pixels are 32-bit or floating-point numbers without a known white")
    if mode == "LAB":
        return _lab_to_rgb(picture)
    return _over_white(picture) if picture.has_transparency_data else picture.convert("RGB")


def _upper_byte(picture: Image.Image) -> Image.Image:
    """A grey picture of 16 bits with 8; Pillow reads 16-bit colour in the same way."""
    if isinstance(picture, TiffImageFile):
        tags = picture.tag_v2
        if tags.get(_TIFF_BITS) != (16,) or tags.get(_TIFF_POLARITY) != 1:
            raise DecodeError("a grey TIFF file that is not plain 16-bit with 0 as black")
    return Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))


def _over_white(picture: Image.Image) -> Image.Image:
    layers = picture.convert("RGBA")
    page = Image.new("RGB", picture.size, (255, 255, 255))
    # Not ``convert("RGB")``, which shows the colour that hides under transparent pixels, often
    # black.
    page.paste(layers, mask=layers)
    return page


def _lab_to_rgb(picture: Image.Image) -> Image.Image:
    from PIL import ImageCms  # needs a part of Pillow that is optional

    lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
    transform = ImageCms.buildTransform(lab, srgb, "LAB", "RGB")
    converted = ImageCms.applyTransform(picture, transform)
    assert converted is not None  # only None when asked to work in place
    return converted


BatchDecoder = Callable[[list[Tensor], torch.device], list[Tensor]]
"""Files as uint8 (bytes,) on the CPU to pictures as uint8 (3, H, W) on the device."""


def find_batch_decoder() -> BatchDecoder | None:
    """torchvision's nvJPEG decoder, or None where there is none.

    It raises ``RuntimeError`` when it cannot read one of the files, and does not say which.
    """
    try:
        from torchvision.io import ImageReadMode, decode_jpeg
    except ImportError:
        return None
    if not hasattr(torch.ops.image, "decode_jpegs_cuda"):
        return None

    def decode_batch(files: list[Tensor], device: torch.device) -> list[Tensor]:
        pictures: list[Tensor] = decode_jpeg(files, mode=ImageReadMode.RGB, device=device)
        return pictures

    return decode_batch
