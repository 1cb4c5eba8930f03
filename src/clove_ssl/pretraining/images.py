"""The images of a run: opened, looked at, kept in memory, and recognised when the run goes on.

The order of images follows from their names, so a run that goes on must find the same names in
the same order. A fingerprint of them lies in every checkpoint. It is made of names inside the
source alone: a folder may be moved or renamed, the files in it may not.

A data set that fits into memory is decoded once. On one GPU it stays there; several processes of
a machine share one copy in memory of the host. What is free at the start counts, and photos get a
share of that alone: the rest is for the networks, and for other programs.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from clove_ssl.config.pretraining import SCENES, DataConfig, PretrainConfig, data_warnings
from clove_ssl.config.views import ViewSpec
from clove_ssl.console import Console
from clove_ssl.cores import available_memory
from clove_ssl.data.kept_photos import (
    MOST_REMOTE_SAMPLES,
    MOST_SAMPLES,
    DecodedSize,
    PhotoStore,
    PhotoTable,
    SharedMemory,
    estimate_decoded_size,
    has_shared_memory,
)
from clove_ssl.data.labels.classified import LabelledImages, only_labelled
from clove_ssl.data.names import NameTable
from clove_ssl.data.reading import may_be_reduced
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
from clove_ssl.training.processes import Process

CachePlace = Literal["gpu", "ram", "off"]

SHARES: dict[CachePlace, float] = {"gpu": 0.1, "ram": 0.5}
"""Of the free memory that photos get without being asked for by name.

Little of a GPU's, so that networks which fit without photos still fit with them: nobody knows yet
how much they will take, and from host memory photos come nearly as fast.
"""
SHARE_AS_ASKED = 0.8
_WORDS: dict[CachePlace, str] = {"gpu": "GPU memory", "ram": "host memory"}


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
            console.say("  These are generated pictures, for a trial; for yours: --data PHOTOS")
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
                "names: some were renamed or replaced, so their order would change. Restore the "
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


@dataclass(frozen=True)
class CacheChoice:
    """Where decoded photos stay, and why."""

    value: CachePlace
    reason: str
    capacity: int = 0
    """Bytes that are set aside for them."""

    def describe(self) -> str:
        """The choice in a few words."""
        words = {"gpu": "cached on the GPU", "ram": "cached in host memory", "off": "not cached"}
        return words[self.value]


@dataclass(frozen=True)
class FreeMemory:
    """Bytes that are free at the start of a run, on the device and the machine that has least."""

    gpu: int
    ram: int

    def of(self, place: CachePlace) -> int:
        """The free bytes of one kind."""
        return {"gpu": self.gpu, "ram": self.ram, "off": 0}[place]


def choose_cache(
    config: DataConfig,
    source: ImageSource,
    process: Process,
    *,
    specs: tuple[ViewSpec, ...],
    renders_on_gpu: bool,
    repeats: bool,
) -> CacheChoice:
    """Decide where photos stay; ``repeats`` says whether any photo comes a second time."""
    asked = config.cache
    if asked == "gpu" and not renders_on_gpu:
        raise UserError(
            "--data.cache gpu needs views that are rendered on a GPU; in this run the workers "
            "render. Give --data.cache ram, or leave it out."
        )
    if asked == "off":
        return CacheChoice("off", "as asked")
    if not repeats:
        return CacheChoice("off", "no photo is used twice")
    if not has_shared_memory():
        return CacheChoice("off", "this system has no anonymous shared memory")
    size = _estimate(config, source, specs, renders_on_gpu=renders_on_gpu)
    size, free = _agreed(size, process, renders_on_gpu=renders_on_gpu)
    if asked == "auto" and 2 * size.left_out > size.samples:
        return CacheChoice("off", "most are so large that workers decode them at reduced size")
    return decide_place(
        asked, size, free, renders_on_gpu=renders_on_gpu, processes=process.world_size
    )


def _estimate(
    config: DataConfig, source: ImageSource, specs: tuple[ViewSpec, ...], *, renders_on_gpu: bool
) -> DecodedSize:
    """What the photos take that can stay; workers decode others at a fraction of their size."""

    def stays(height: int, width: int) -> bool:
        return renders_on_gpu or not may_be_reduced(height, width, specs)

    return estimate_decoded_size(
        source,
        max_pixels=config.max_pixels,
        stays=stays,
        most_samples=MOST_REMOTE_SAMPLES if "://" in config.source else MOST_SAMPLES,
    )


def decide_place(
    asked: Literal["auto", "gpu", "ram"],
    size: DecodedSize,
    free: FreeMemory,
    *,
    renders_on_gpu: bool,
    processes: int,
) -> CacheChoice:
    """The first place that has room, by plain numbers."""
    if asked == "auto":
        on_gpu = renders_on_gpu and processes == 1  # each GPU would wait for its own copy
        places: list[CachePlace] = ["gpu", "ram"] if on_gpu else ["ram"]
    else:
        places = [asked]
    needed, refusals = size.with_margin, []
    for place in places:
        share = SHARES[place] if asked == "auto" else SHARE_AS_ASKED
        allowed = int(share * free.of(place))
        facts = f"{100 * share:.0f} % of the free {_WORDS[place]} is {_amount(allowed)}"
        if needed <= allowed:
            return CacheChoice(place, f"about {_amount(size.bytes)} decoded; {facts}", needed)
        refusals.append(facts)
    wanted = f"about {_amount(size.bytes)} decoded, with a margin {_amount(needed)}"
    if asked == "auto":
        return CacheChoice("off", f"{wanted}; {', '.join(refusals)}")
    other = {"gpu": "ram", "ram": "off"}[asked]
    raise UserError(
        f"--data.cache {asked} needs room for all photos, {wanted}, but {refusals[0]}. Give "
        f"--data.cache {other}, or scale the photos down."
    )


def open_store(choice: CacheChoice, photos: int, process: Process) -> PhotoStore | None:
    """Memory for the photos; what is in host memory is shared by the processes of a machine."""
    if choice.value == "off":
        return None
    if choice.value == "gpu":
        pixels = torch.empty(choice.capacity, dtype=torch.uint8, device=process.device)
        return PhotoStore(PhotoTable(photos, choice.capacity), pixels)
    return _open_shared(choice, photos, process)


def _open_shared(choice: CacheChoice, photos: int, process: Process) -> PhotoStore:
    """The first process of a machine makes the memory, the others open it."""
    table, pixels, addresses = None, None, None
    if process.local_rank == 0:
        table, pixels = PhotoTable(photos, choice.capacity), SharedMemory(choice.capacity)
        addresses = table.address, pixels.address
    everywhere = process.gather(addresses)
    if table is None or pixels is None:
        theirs: Any = everywhere[process.rank - process.local_rank]
        table = PhotoTable(photos, choice.capacity, address=theirs[0])
        pixels = SharedMemory.at(theirs[1])
    process.wait()  # until all have opened it, or the first may end before
    return PhotoStore(table, pixels)


def _agreed(
    size: DecodedSize, process: Process, *, renders_on_gpu: bool
) -> tuple[DecodedSize, FreeMemory]:
    """The same numbers for all processes, so that they decide alike."""
    gpu = 0
    if renders_on_gpu:
        free, _ = torch.cuda.mem_get_info(process.device)
        gpu = free // -(-process.local_world_size // torch.cuda.device_count())
    sizes, gpus, rams = zip(
        *process.gather((size, gpu, available_memory() or 0)), strict=True
    )  # in the order of the processes
    return sizes[0], FreeMemory(gpu=min(gpus), ram=min(rams))


def _amount(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**28 else f"{size / 2**20:.1f} MiB"
