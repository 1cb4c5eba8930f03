"""Every image below a folder, exactly once, in an order that depends on names alone.

Symbolic links are followed, but each real folder and each real file counts
once: an image that is really inside the tree keeps its own name, however many
links point to it, and of several links to one image the first name stays.
So loops end, and adding a link does not change the order of the rest.

Nothing that looks like an image is dropped quietly. A dangling link, a link
to itself or a pipe with an image suffix stays in the list; reading it fails,
and whoever reads reports it. A folder called ``x.jpg`` is a folder.
"""

from __future__ import annotations

import heapq
import os
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from clove_ssl.data.names import FOREIGN_SUFFIXES, how_to_convert, is_image_name, suffix_of
from clove_ssl.data.searching import is_folder
from clove_ssl.errors import UserError, counted


class Advice(NamedTuple):
    """What a user who named a folder without images can name instead."""

    shards: str  # how tar files are given, with a place for their pattern
    otherwise: str


@dataclass
class FolderListing:
    """What was found below a folder; paths are relative to it."""

    images: list[str] = field(default_factory=list)
    tars: int = 0
    others: int = 0  # files that are neither
    foreign: Counter[str] = field(default_factory=Counter)  # of these, pictures by their suffixes

    def unread_pictures(self, root: str) -> str:
        """Which pictures are of a kind that is not decoded, and what to do; empty without any."""
        if not self.foreign:
            return ""
        suffix, count = self.foreign.most_common(1)[0]
        return (
            f"{counted(count, f'{suffix} file')} of {root} cannot be decoded. "
            f"{how_to_convert(suffix, root)}"
        )

    def no_images(self, root: str, advice: Advice) -> UserError:
        """Build the error for a folder that holds none."""
        if self.tars:
            return UserError(
                f"The folder {root} holds {counted(self.tars, 'tar file')} but no loose images. To "
                f"read the images inside, {advice.shards.format(os.path.join(root, '*.tar'))}"
            )
        if unread := self.unread_pictures(root):
            return UserError(f"The folder {root} holds no images that can be read. {unread}")
        return UserError(
            f"The folder {root} holds no images ({counted(self.others, 'other file')}). Expected "
            f".jpg, .png, .webp, .tif or the like at any depth; {advice.otherwise}."
        )


def list_images(root: str) -> FolderListing:
    """Search the folder ``root`` recursively; hidden folders are searched as well."""
    walk = _Walk(root)
    walk.visit("", os.path.realpath(root))
    while walk.folder_links:
        relative = heapq.heappop(walk.folder_links)
        walk.visit(relative, os.path.realpath(os.path.join(root, relative)))
    walk.add_linked_files()
    walk.found.images.sort()
    return walk.found


class _Walk:
    """One search: links wait until all that is really there has been seen."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.found = FolderListing()
        self.folder_links: list[str] = []  # heap of relative paths
        self._file_links: list[str] = []
        self._visited: set[str] = set()  # real paths of folders

    def visit(self, relative: str, real: str) -> None:
        """List the real folder ``real``, known by the name ``relative``, and all below it."""
        pending = [(relative, real)]
        while pending:
            relative, real = pending.pop()
            if real in self._visited:
                continue
            self._visited.add(real)
            for entry in _entries(real):
                name = os.path.join(relative, entry.name)
                if not is_folder(entry):
                    self._add_file(name, is_link=entry.is_symlink())
                elif entry.is_symlink():
                    heapq.heappush(self.folder_links, name)
                else:
                    pending.append((name, os.path.join(real, entry.name)))

    def _add_file(self, name: str, *, is_link: bool) -> None:
        if is_image_name(name):
            (self._file_links if is_link else self.found.images).append(name)
        elif name.lower().endswith(".tar"):
            self.found.tars += 1
        else:
            self.found.others += 1
            if (suffix := suffix_of(name)) in FOREIGN_SUFFIXES:
                self.found.foreign[suffix] += 1

    def add_linked_files(self) -> None:
        """Add the links whose target is not in the list yet, and those without a target."""
        taken: set[str] = set()
        for name in sorted(self._file_links):
            target = os.path.realpath(os.path.join(self.root, name))
            listed = os.path.dirname(target) in self._visited and is_image_name(target)
            if os.path.exists(target) and (listed or target in taken):
                continue
            taken.add(target)
            self.found.images.append(name)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise unlisted(folder, error, holds="images") from None


def unlisted(folder: str, error: OSError, *, holds: str) -> UserError:
    """Build the error for a folder whose files nobody may see."""
    return UserError(
        f"Cannot list the folder {folder}: {error.strerror}. Its {holds} would be left "
        "out silently; make it readable, or give --data a folder that does not contain it."
    )
