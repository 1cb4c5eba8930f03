"""Which images a run was started with, wherever it and they are now.

The order of images follows from their names, so a run that goes on must find the same names in
the same order. A fingerprint of them lies in every checkpoint. It is made of names inside the
source alone: a folder may be moved or renamed, the files in it may not.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace

from clove_ssl.config.pretraining import DataConfig
from clove_ssl.data.joined import JoinedSource
from clove_ssl.data.labels.classified import LabelledImages
from clove_ssl.data.names import NameTable
from clove_ssl.data.sources import ImageSource, ListSource

SCENES = "scenes"


def fingerprint(source: ImageSource) -> str:
    """A hash of the names of all images in their order; empty for images without files."""
    digest = hashlib.sha256()
    found = False
    for table in _tables(source):
        found = True
        digest.update(table.ends.tobytes())
        digest.update(table.block)
    return digest.hexdigest()[:32] if found else ""


def _tables(source: ImageSource) -> Iterator[NameTable]:
    """The names of a source, without the place where it lies."""
    if isinstance(source, LabelledImages):
        yield from _tables(source.whole)
    elif isinstance(source, JoinedSource):
        for part in source.parts:
            yield from _tables(part)
    elif isinstance(source, ListSource):
        yield _below_their_folder(source)
    elif isinstance(table := getattr(source, "_names", None), NameTable):
        yield table


def _below_their_folder(source: ListSource) -> NameTable:
    """The names of a list without the folder that all of them share, which may have been moved."""
    names = [source.name(index) for index in range(len(source))]
    shared = len(os.path.commonprefix([os.path.dirname(name) + "/" for name in names]))
    return NameTable.of(name[shared:] for name in names)


def located(data: DataConfig) -> DataConfig:
    """The same images, by names that hold in whatever folder a run is resumed."""
    return replace(data, source=_absolute(data.source), more=tuple(map(_absolute, data.more)))


def _absolute(source: str) -> str:
    if source == SCENES or "://" in source:
        return source
    return os.path.abspath(os.path.expanduser(source))
