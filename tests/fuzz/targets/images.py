"""Images, tar shards, index files, lists of files and class maps."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from builders.files.odd_files import encode, photo, write_odd_folder
from builders.files.small_sources import member, write_tar
from fuzz.formats import damaged_npy, damaged_png, damaged_tar, damaged_zip, mostly
from fuzz.target import MEGABYTE, Files, Limit, Target

from clove_ssl.config.pretraining import DataConfig
from clove_ssl.data.decode import DecodeError, decode, image_size
from clove_ssl.data.jpeg_header import read_header
from clove_ssl.data.labels.classes import find_class_labels
from clove_ssl.data.sources import open_source
from clove_ssl.data.whole_files import read_whole
from clove_ssl.tasks.predictions import read_label_maps, write_label_maps

FIXED_TIME = 1_000_000_000
"""Modification time of all files, which an index file names."""


def files_of(write: Callable[[Path], object]) -> Files:
    """What a function writes into a folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        return read_files(folder)


def read_files(folder: Path) -> Files:
    """The contents of all regular files below a folder."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def _image_seeds() -> dict[str, Files]:
    files = files_of(lambda folder: write_odd_folder(folder / "odd"))
    small = {name: data for name, data in files.items() if len(data) < 20_000}
    return {Path(name).name: {"image": data} for name, data in small.items()}


def _read_image(folder: Path) -> None:
    data = read_whole(folder / "image")
    read_header(data)
    height, width = image_size(data)
    for reduce in (1, 4):
        pixels = decode(data, reduce=reduce)
        assert pixels.dtype.itemsize == 1
    assert pixels.shape[1] <= height
    assert pixels.shape[2] <= width


def with_pixels(data: bytes) -> float:
    """The file, and the pixels that its header promises."""
    try:
        height, width = image_size(data)
    except DecodeError:
        height = width = 0
    return (len(data) + 3 * height * width) / MEGABYTE


IMAGES = Target(
    "images",
    _image_seeds,
    _read_image,
    Limit(0.5, 32, seconds_per_megabyte=0.1, megabytes_per_megabyte=6),
    damages={"": mostly(damaged_png)},
    refusals=(DecodeError, OSError),
    size=with_pixels,
)


def _tar_seeds() -> dict[str, Files]:
    picture = encode(photo(8, 8), "PNG")
    found: dict[str, Files] = {}
    for kind in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        members = [member(f"{n:03d}/{'x' * 20 * n}.png", picture) for n in range(3)]
        members += [member("0.cls", b"7"), member("000/.cls", b"1"), member("e.jpg")]
        if kind != tarfile.USTAR_FORMAT:
            members.append(member("long" * 60 + ".png", picture))
        found[str(kind)] = files_of(
            lambda folder, kind=kind, members=members: write_tar(
                folder / "a.tar", *members, format=kind
            )
        )
    return found


def _read_tar(folder: Path) -> None:
    source = open_source(DataConfig(source=str(folder / "a.tar")))
    for index in range(len(source)):
        source.name(index)
        try:
            decode(source.read(index))
        except (DecodeError, OSError):
            continue
    find_class_labels(source)


TARS = Target(
    "tars",
    _tar_seeds,
    _read_tar,
    Limit(0.5, 32),
    damages={".tar": mostly(damaged_tar)},
)


def _index_seeds() -> dict[str, Files]:
    def write(folder: Path) -> None:
        (folder / "a.tar").write_bytes(_tar_seeds()["0"]["a.tar"])
        os.utime(folder / "a.tar", (FIXED_TIME, FIXED_TIME))
        _read_tar(folder)

    return {"index": files_of(write)}


INDEXES = Target(
    "indexes",
    _index_seeds,
    _read_tar,
    Limit(0.5, 32),
    damages={"": mostly(damaged_zip(mostly(damaged_npy)))},
    changed=(".clove-index",),
)


def _list_seeds() -> dict[str, Files]:
    files = {"a.png": encode(photo(8, 8), "PNG"), "list.txt": b"# images\na.png\n\na.png\n"}
    return {"list": files}


def _read_list(folder: Path) -> None:
    source = open_source(DataConfig(source=str(folder / "list.txt")))
    for index in range(len(source)):
        source.name(index)
        source.read(index)


LISTS = Target("lists", _list_seeds, _read_list, Limit(0.5, 32), changed=(".txt",))


def _map_seeds() -> dict[str, Files]:
    maps = {"a": np.zeros((4, 5), np.uint8), "b": np.ones((2, 2), np.uint8)}
    files = files_of(lambda folder: write_label_maps(folder / "maps.npz", maps, header={}))
    return {"with header": files, "alone": {"maps.npz": files["maps.npz"]}}


def _inflated(data: bytes) -> float:
    """The size of an archive, or of what it says it holds."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            held = sum(entry.file_size for entry in archive.infolist())
    except Exception:  # it is none any more
        held = 0
    return max(len(data), held) / MEGABYTE


MAPS = Target(
    "class-maps",
    _map_seeds,
    lambda folder: read_label_maps(folder / "maps.npz") and None,
    Limit(0.5, 32),
    damages={".npz": mostly(damaged_zip(mostly(damaged_npy)))},
    size=_inflated,
)

TARGETS = (IMAGES, TARS, INDEXES, LISTS, MAPS)
