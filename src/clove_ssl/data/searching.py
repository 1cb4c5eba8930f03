"""Files that a pattern with ``*``, ``?``, ``[]`` and ``**`` names, found with a limit.

The patterns are those of Python's ``glob``, which would look through a whole disk for
``/**/*.tar``, in circles where links lead back, without a word.
"""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Iterator

from clove_ssl.errors import UserError

MOST_ENTRIES = 2_000_000
"""Files and folders that are looked at for a pattern; millions take minutes on a slow disk."""
_DEEPEST = 100  # folders below each other


def matching_files(pattern: str) -> list[str]:
    """Everything that a pattern names, sorted; nothing for a text without wildcards."""
    if not glob.has_magic(pattern):
        return []
    start = "/" if pattern.startswith("/") else ""
    parts = [part for part in pattern.split("/") if part]
    if parts[-1] == "**":
        parts.append("*")
    search = _Search(pattern)
    return sorted(set(search.find(start, parts)))


class _Search:
    """One search, which gives up when it has seen too much."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._seen = 0

    def find(self, folder: str, parts: list[str]) -> Iterator[str]:
        """Paths below ``folder``, whose names follow the parts of a pattern."""
        first, *rest = parts
        if first == "**":
            for below in self._folders_below(folder):
                yield from self.find(below, rest)
        elif glob.has_magic(first):
            for entry in self._entries(folder):
                if not _fits(entry.name, first):
                    continue
                path = os.path.join(folder, entry.name)
                if not rest:
                    yield path
                elif is_folder(entry):
                    yield from self.find(path, rest)
        else:
            path = os.path.join(folder, first)
            if rest and os.path.isdir(path):
                yield from self.find(path, rest)
            elif not rest and os.path.lexists(path):
                yield path

    def _folders_below(self, folder: str) -> Iterator[str]:
        """A folder and all below it, each once, however many links lead there."""
        pending, visited = [(folder, 0)], set()
        while pending:
            path, depth = pending.pop()
            real = os.path.realpath(path or ".")
            if real in visited or depth > _DEEPEST:
                continue
            visited.add(real)
            yield path
            pending += [
                (os.path.join(path, entry.name), depth + 1)
                for entry in self._entries(path)
                if not entry.name.startswith(".") and is_folder(entry)
            ]

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        """What is in a folder; nothing where it cannot be listed, as in glob."""
        try:
            with os.scandir(folder or ".") as entries:
                found = list(entries)
        except OSError:
            return []
        self._seen += len(found)
        if self._seen > MOST_ENTRIES:
            raise UserError(
                f"--data {self._pattern!r} asks to look through more than {MOST_ENTRIES:,} files "
                f"and folders; the search was in {folder}. Name the folder of the shards, as in "
                '--data "FOLDER/*.tar".'
            )
        return found


def _fits(name: str, part: str) -> bool:
    """Whether a name follows a part of a pattern; hidden files must be asked for."""
    if name.startswith(".") and not part.startswith("."):
        return False
    return fnmatch.fnmatchcase(name, part)


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder, or a link to one."""
    try:
        return entry.is_dir()
    except OSError:  # a link that leads back to itself
        return False
