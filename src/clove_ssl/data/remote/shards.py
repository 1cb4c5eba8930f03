"""Images in tar shards behind URLs, read in place.

The offset index of a shard is made from its headers, each fetched with a
request for a short range of bytes, and is kept in the user's cache folder
under the shard's URL, size and version. Reading an image is then one request
for its range. What ``shards`` says about unsafe and damaged members holds here
as well.
"""

from __future__ import annotations

import hashlib
import io
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from clove_ssl.data.names import IntArray, expand_braces
from clove_ssl.data.remote.protocols import needs_of
from clove_ssl.data.remote.storage import Patience, RemoteReader, connect, in_short, repeating
from clove_ssl.data.shards import (
    INDEX_FORMAT,
    ShardIndex,
    cached_index,
    load_index,
    save_index,
    scan_file,
)
from clove_ssl.data.sources import TarSource
from clove_ssl.errors import UserError

HEADER_BYTES = 4096  # fetched per header: itself, a long name, and a small label that follows
SHARDS_AT_ONCE = 16  # shards whose indexes are looked up or made at the same time

# What tells two versions of a file apart; every kind of storage has its own words for it.
_VERSION_FIELDS = (
    *("ETag", "etag", "Content-MD5", "md5Hash", "content_md5"),
    *("mtime", "LastModified", "last_modified", "Last-Modified", "updated", "created"),
)


class RemoteTarSource(TarSource):
    """Images in uncompressed tar shards behind URLs, in the order of the pattern and the shards.

    Args:
        pattern: A URL, with braces and wildcards as in patterns of local shards.
        patience: How to go on after a failed request.
    """

    def __init__(self, pattern: str, *, patience: Patience | None = None) -> None:
        patience = patience or Patience()
        self.shards = find_remote_shards(pattern, patience)
        reader = self._reader = RemoteReader(self.shards, patience)
        with ThreadPoolExecutor(SHARDS_AT_ONCE) as pool:
            indexes = list(pool.map(lambda n: remote_index(reader, n), range(len(self.shards))))
        self._take(pattern, indexes)


def find_remote_shards(pattern: str, patience: Patience) -> list[str]:
    """URLs that ``pattern`` names; only wildcards ask the storage what is there."""
    urls: dict[str, str] = {}
    for url in expand_braces(pattern):
        storage, path = connect(url, patience)
        wildcards = "*[" if url.startswith(("http://", "https://")) else "*?["
        if not any(sign in url for sign in wildcards):
            urls.setdefault(path, url)
            continue
        found = _matches(storage, path, url=url, patience=patience)
        if not found:
            raise UserError(
                f"No file matches {url}, which --data {pattern!r} asks for. Check bucket and "
                "folder, or name the shards one by one, as in {000000..000099}.tar."
            )
        for each in found:
            urls.setdefault(each, str(storage.unstrip_protocol(each)))
    return list(urls.values())


def _matches(storage: Any, path: str, *, url: str, patience: Patience) -> list[str]:
    try:
        return repeating(lambda: sorted(storage.glob(path)), url=url, patience=patience)
    except OSError as error:
        raise _unreadable(url, error) from error


def remote_index(reader: RemoteReader, shard: int) -> ShardIndex:
    """The index of a shard, from the cache if that still fits."""
    url = reader.paths[shard]
    try:
        info = reader.info(shard)
        length = _length(url, info)
        stamp, place = _stamp(info, length), cached_index(url.encode())
        if stamp is None or place is None:
            return scan(reader, shard, length)
        index = load_index(place, stamp)
        if index is None:
            index = scan(reader, shard, length)
            save_index(place, stamp, index)
    except OSError as error:
        raise _unreadable(url, error) from error
    return index


def _length(url: str, info: dict[str, Any]) -> int:
    if info.get("type") == "directory":
        raise IsADirectoryError(f"{url} is a folder")
    if info.get("size") is None:
        raise OSError(f"{url} is served without saying how long it is")
    try:
        return int(info["size"])
    except (TypeError, ValueError):
        raise OSError(f"{url} is served with the length {info['size']!r:.40}") from None


def _stamp(info: dict[str, Any], length: int) -> IntArray | None:
    """What the index must agree with; nothing where the storage does not tell versions apart."""
    version = [f"{key}={info[key]}" for key in _VERSION_FIELDS if info.get(key) is not None]
    if not version:
        return None
    digest = hashlib.sha256("\n".join(version).encode()).digest()
    number = int.from_bytes(digest[:8], "little", signed=True)
    return np.array([INDEX_FORMAT, length, number], np.int64)


def scan(reader: RemoteReader, shard: int, length: int) -> ShardIndex:
    """Fetch all headers of a shard."""
    file = io.BufferedReader(_Ranges(reader, shard, length), HEADER_BYTES)
    return scan_file(file, reader.paths[shard], length=length)


class _Ranges(io.RawIOBase):
    """A remote file as ``tarfile`` wants it; a buffer around it makes the requests larger."""

    def __init__(self, reader: RemoteReader, shard: int, length: int) -> None:
        self._reader, self._shard, self._length = reader, shard, length
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}[whence]
        if start + offset < 0:
            raise ValueError(f"cannot seek to {start + offset}")
        self._position = start + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        size = max(min(len(buffer), self._length - self._position), 0)
        buffer[:size] = self._reader.read(self._shard, self._position, size)
        self._position += size
        return size


def _unreadable(url: str, error: Exception) -> UserError:
    if isinstance(error, FileNotFoundError):
        return UserError(
            f"There is no {url}. Check bucket, folder and numbers, or take what is there with a "
            'pattern such as --data "s3://BUCKET/FOLDER/*.tar".'
        )
    return UserError(
        f"Cannot read {url}: {in_short(error)}. Check that the URL is right, that this machine "
        f"reaches it, and that its credentials allow reading. {needs_of(url)}"
    )
