"""Byte ranges of files behind URLs: ``s3://``, ``gs://``, ``https://`` and the like.

fsspec speaks to the storage. Every request is repeated a few times when it
fails in a way that may pass, which is told once; an ``OSError`` comes out when
it does not.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from clove_ssl.console import Console, duration
from clove_ssl.data.remote.protocols import driver_of, needs_of
from clove_ssl.data.shards import BLOCK, ShardReader
from clove_ssl.errors import UserError

T = TypeVar("T")

# Storage drivers raise kinds of their own for network trouble, not only OSError, so this
# lists what does not pass by itself.
_LASTING = (
    *(FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError),
    *(ImportError, TypeError, ValueError, AttributeError, LookupError, NotImplementedError),
    UserError,
)
# Words in the names of errors of drivers that no second try mends either.
_LASTING_NAMES = ("Credential", "Auth", "Forbidden", "NoSuchBucket", "InvalidURL")
_MOST_REFUSALS = 3  # a server that is not there when a run begins rarely comes
_MOST_WORDS = 300  # characters of what a driver says


def connect(url: str, patience: Patience | None = None) -> tuple[Any, str]:
    """The fsspec file system of ``url``, and the path of the file in it."""
    try:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]
    except ImportError:
        raise UserError(
            f"--data {url} is behind a URL, and fsspec, which reads those, is not installed. "
            'Type: pip install "clove-ssl[stream]"'
        ) from None
    try:
        storage, path = _opened(lambda: url_to_fs(url), url, patience or Patience())
    except ImportError as error:
        driver = driver_of(url)
        remedy = f"Type: pip install {driver}" if driver else "Install the package it names."
        raise UserError(f"--data {url} cannot be read yet: {error}. {remedy}") from None
    except ValueError as error:
        raise UserError(
            f"--data {url} cannot be read: {error}. Expected s3://, gs://, https:// or another "
            "protocol that fsspec knows, or a local path without ://."
        ) from None
    except Exception as error:  # drivers connect here, and each has errors of its own
        why = in_short(error)
        raise UserError(f"--data {url} cannot be opened: {why}. {needs_of(url)}") from None
    return storage, str(path)


def _opened(open_url: Callable[[], T], url: str, patience: Patience) -> T:
    """Open a storage; only a server that does not answer is asked again."""
    failures = 0
    while True:
        try:
            return open_url()
        except (ConnectionError, TimeoutError) as error:
            failures += 1
            if isinstance(error, ConnectionRefusedError):
                patience = replace(patience, attempts=min(patience.attempts, _MOST_REFUSALS))
            if failures >= patience.attempts:
                raise
            patience.tell(error, url, len(url))
        time.sleep(patience.wait(failures, len(url)))


def in_short(error: Exception) -> str:
    """What a driver says, in one line of bounded length."""
    words = " ".join(str(error).split())[:_MOST_WORDS].rstrip(". ")
    if words and isinstance(error, OSError):
        return words
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


@dataclass(frozen=True)
class Patience:
    """How often a request is tried, and how long to wait in between."""

    attempts: int = 6
    first_wait: float = 0.5  # seconds; doubled every time
    told: list[str] = field(default_factory=list, compare=False)  # URLs in trouble; one is enough

    def wait(self, failures: int, spread: int) -> float:
        """Seconds to wait; ``spread`` keeps many workers from coming back at the same moment.

        Nothing is drawn at random, because that would move the generators of the run.
        """
        return self.first_wait * 2.0 ** (failures - 1) * (1 + spread % 16 / 16)

    def tell(self, error: Exception, url: str, spread: int) -> None:
        """Say at the first failure why it takes longer; workers of a run leave that to it."""
        if self.told:
            return
        self.told.append(url)
        is_first = multiprocessing.parent_process() is None and os.environ.get("RANK", "0") == "0"
        waits = [self.wait(failures, spread) for failures in range(1, self.attempts)]
        Console(speaks=is_first).warn(
            f"{url} does not answer ({in_short(error)}); it is asked up to {len(waits)} times "
            f"more, for about {duration(sum(waits))}."
        )


def may_pass(error: Exception) -> bool:
    """Whether a failed request is worth another try."""
    status = getattr(error, "status", None)
    refused = isinstance(status, int) and 400 <= status < 500 and status not in (408, 429)
    named = any(word in type(error).__name__ for word in _LASTING_NAMES)
    return not refused and not named and not isinstance(error, _LASTING)


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
                raise OSError(f"{url}: {in_short(error)}") from error
            patience.tell(error, url, spread)
        time.sleep(patience.wait(failures, spread))


class RemoteReader(ShardReader):
    """Byte ranges of many files on one storage.

    It travels to worker processes without its connection. Each process makes
    its own on first use, and threads share it.

    A file that has failed for good, after all tries, is asked once from then on until it answers
    again: its many images would each wait for half a minute.
    """

    def __init__(self, urls: list[str], patience: Patience) -> None:
        super().__init__(urls)
        self.patience = patience
        self._storage: tuple[int, Any] | None = None  # process that connected, file system
        self._failed: set[int] = set()  # numbers of files

    def read(self, shard: int, offset: int, size: int) -> bytes:
        """``size`` bytes of file number ``shard``."""
        if not size:  # no range of bytes is empty in HTTP; the whole file would come
            return b""
        url = self.paths[shard]
        patience = replace(self.patience, attempts=1) if shard in self._failed else self.patience
        try:
            data = repeating(
                lambda: bytes(self._connection().cat_file(url, start=offset, end=offset + size)),
                url=url,
                patience=patience,
                spread=offset // BLOCK,
            )
        except OSError:
            self._failed.add(shard)
            raise
        self._failed.discard(shard)
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
            self._storage = os.getpid(), connect(self.paths[0], self.patience)[0]
        return self._storage[1]

    def __getstate__(self) -> dict[str, object]:
        own: dict[str, object] = {"patience": self.patience, "_storage": None, "_failed": set()}
        return {**super().__getstate__(), **own}
