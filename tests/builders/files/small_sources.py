"""Small folders and shards for tests of sources."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from clove_ssl.data.sources import ImageSource


def names(source: ImageSource) -> list[str]:
    return [source.name(index) for index in range(len(source))]


def contents(source: ImageSource) -> list[bytes]:
    return [source.read(index) for index in range(len(source))]


def write(folder: Path, *paths: str) -> None:
    """Files whose content is their own path."""
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(path.encode())


def member(name: str, data: bytes = b"", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def write_tar(path: Path, *members: tuple[tarfile.TarInfo, bytes], **options: object) -> Path:
    with tarfile.open(path, "w", **options) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return path


def write_two_shards(folder: Path) -> None:
    """Shards 08 and 09 of three images each, with a label beside."""
    for shard in ("08", "09"):
        images = [member(f"{n}.jpg", f"{shard}/{n}".encode() * (n + 1)) for n in range(3)]
        write_tar(folder / f"{shard}.tar", *images, member("0.cls", b"7"))
