"""The images of a run: opened, looked at, and recognised when the run goes on.

The order of images follows from their names, so a run that goes on must find the same names in
the same order. A fingerprint of them lies in every checkpoint. It is made of names inside the
source alone: a folder may be moved or renamed, the files in it may not.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from clove_ssl.config.pretraining import SCENES, DataConfig, PretrainConfig, data_warnings
from clove_ssl.console import Console
from clove_ssl.data.labels.classified import LabelledImages, only_labelled
from clove_ssl.data.names import NameTable
from clove_ssl.data.sources import (
    BadFiles,
    ImageSource,
    JoinedSource,
    ListSource,
    open_source,
    source_warnings,
    typical_shorter_side,
)
from clove_ssl.errors import UserError
from clove_ssl.training.checkpoints import State


@dataclass(frozen=True)
class RunImages:
    """What a run is trained on."""

    data: DataConfig
    source: ImageSource
    names: str  # a fingerprint of the names of all images
    shorter_side: int | None  # of most images, in pixels

    def __len__(self) -> int:
        return len(self.source)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes of the images, where these were asked for."""
        return self.source.class_names if isinstance(self.source, LabelledImages) else ()

    def warnings(self, config: PretrainConfig) -> Iterator[str]:
        """What is left out of the source, and what should give pause."""
        yield from source_warnings(self.source)
        yield from data_warnings(config, images=len(self), shorter_side=self.shorter_side)

    def announce(self, workers: str, console: Console) -> None:
        """Say which images are trained on, above all where they are none of the user's."""
        data, count = self.data, f"{len(self):,} images"
        if data.source == SCENES:
            console.choice("data", f"scenes: {count}", workers)
            console.say("  These are generated pictures, to try things out; yours: --data PHOTOS")
        elif data.more:
            sources = f"{1 + len(data.more)} sources as one, in this order"
            console.choice("data", f"{sources}: {count}", workers)
            for each in (data.source, *data.more):
                console.say(f"    {each}")
        else:
            console.choice("data", f"{data.source}: {count}", workers)

    def check_same(self, state: State) -> None:
        """Refuse other images than those that a checkpoint was made with, if there is one."""
        if not state:
            return
        if state.get("images") != len(self):
            raise UserError(
                f"{self.data.source} has {len(self)} images, but this run was started with "
                f"{state.get('images')}, so their order would change. Restore the files, say where "
                "they are now with --data, or start a new run with another --out."
            )
        # Checkpoints of earlier versions have no names.
        if state.get("names") not in (None, self.names):
            raise UserError(
                f"{self.data.source} has as many images as this run was started with, but other "
                "names: some were renamed or exchanged, so their order would change. Restore the "
                "names, say where the images are now with --data, or start a new run with another "
                "--out."
            )

    def bad_files(
        self, state: State, record: Callable[[Mapping[str, str]], None] | None
    ) -> BadFiles:
        """The unreadable files that a checkpoint knows of; ``record`` keeps those that follow."""
        bad = state.get("bad_files")
        known = {str(name): str(bad[name]) for name in bad} if isinstance(bad, dict) else {}
        return BadFiles(self.data, len(self), known=known, record=record, names=self.names)


def open_images(data: DataConfig, *, with_classes: bool = False) -> RunImages:
    """Look through the images of a run; ``with_classes``, at those that have one alone."""
    source = open_source(data)
    if with_classes:
        source = only_labelled(source)
    return RunImages(data, source, fingerprint(source), typical_shorter_side(source))


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
