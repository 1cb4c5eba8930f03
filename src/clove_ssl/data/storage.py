"""Byte ranges of files behind URLs: ``s3://``, ``gs://``, ``https://`` and the like.

fsspec speaks to the storage. Every request is repeated a few times when it
fails in a way that may pass; an ``OSError`` comes out when it does not.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from clove_ssl.data.shards import BLOCK, ShardReader
from clove_ssl.errors import UserError

T = TypeVar("T")

# Storage drivers raise kinds of their own for network trouble, not only OSError, so this
# lists what does not pass by itself.
_LASTING = (
    *(FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError),
    *(ImportError, TypeError, ValueError, AttributeError, LookupError, NotImplementedError),
)
_DRIVERS = {
    **dict.fromkeys(("http", "https"), "aiohttp requests"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("az", "abfs"), "adlfs"),
    "s3": "s3fs",
}


def connect(url: str) -> tuple[Any, str]:
    """The fsspec file system of ``url``, and the path of the file in it."""
    try:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]
    except ImportError:
        raise UserError(
            f"--data {url} is behind a URL, and fsspec, which reads those, is not installed. "
            'Type: pip install "clove-ssl[stream]"'
        ) from None
    try:
        storage, path = url_to_fs(url)
    except ImportError as error:
        driver = _DRIVERS.get(url.partition("://")[0])
        remedy = f"Type: pip install {driver}" if driver else "Install the package it names."
        raise UserError(f"--data {url} cannot be read yet: {error}. {remedy}") from None
    except ValueError as error:
        raise UserError(
            f"--data {url} cannot be read: {error}. Expected s3://, gs://, https:// or another "
            "protocol that fsspec knows, or a local path without ://."
        ) from None
    return storage, str(path)


@dataclass(frozen=True)
class Patience:
    """How often a request is tried, and how long to wait in between."""

    attempts: int = 6
    first_wait: float = 0.5  # seconds; doubled every time

    def wait(self, failures: int, spread: int) -> float:
        """Seconds to wait; ``spread`` keeps many workers from coming back at the same moment.

        Nothing is drawn at random, because that would move the generators of the run.
        """
        return self.first_wait * 2.0 ** (failures - 1) * (1 + spread % 16 / 16)


def may_pass(error: Exception) -> bool:
    """Whether a failed request is worth another try."""
    status = getattr(error, "status", None)
    refused = isinstance(status, int) and 400 <= status < 500 and status not in (408, 429)
    return not refused and not isinstance(error, _LASTING)


def repeating(request: Callable[[], T], *, url: str, patience: Patience, spread: int = 0) -> T:
    """The answer to ``request``, tried again while its failure may pass."""
    failures = 0
    while True:
        try:
            return request()
        except Exception as error:
            failures += 1
            if not may_pass(error) or failures >= patience.attempts:
                if isinstance(error, OSError):
                    raise
                raise OSError(f"{url}: {type(error).__name__}: {error}") from error
        time.sleep(patience.wait(failures, spread))


class RemoteReader(ShardReader):
    """Byte ranges of many files on one storage.

    It travels to worker processes without its connection. Each process makes
    its own on first use, and threads share it.
    """

    def __init__(self, urls: list[str], patience: Patience) -> None:
        super().__init__(urls)
        self.patience = patience
        self._storage: tuple[int, Any] | None = None  # process that connected, file system

    def read(self, shard: int, offset: int, size: int) -> bytes:
        """``size`` bytes of file number ``shard``."""
        if not size:  # no range of bytes is empty in HTTP; the whole file would come
            return b""
        url = self.paths[shard]
        storage = self._connection()
        data = repeating(
            lambda: bytes(storage.cat_file(url, start=offset, end=offset + size)),
            url=url,
            patience=self.patience,
            spread=offset // BLOCK,
        )
        if len(data) > size:
            raise OSError(f"{url} came as a whole: its server does not give out ranges of bytes")
        if len(data) < size:
            raise OSError(f"{url} has become shorter since it was indexed")
        return data

    def info(self, shard: int) -> dict[str, Any]:
        """What the storage knows about a file."""
        url = self.paths[shard]
        storage = self._connection()
        return repeating(
            lambda: dict(storage.info(url)), url=url, patience=self.patience, spread=shard
        )

    def _connection(self) -> Any:
        # A connection does not survive a fork: its event loop ran in a thread of the parent.
        if self._storage is None or self._storage[0] != os.getpid():
            self._storage = os.getpid(), connect(self.paths[0])[0]
        return self._storage[1]

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "patience": self.patience, "_storage": None}
