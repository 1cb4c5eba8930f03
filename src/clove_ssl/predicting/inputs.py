"""What a user points at, as one row of images: files, folders, shards, videos.

Every image has a name for people and a place below the output folder, which no other image has.
What cannot be read is an image, too: one that is a reason instead of pixels.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from torch import Tensor

from clove_ssl.cores import available_cores
from clove_ssl.data.decode import DecodeError, decode
from clove_ssl.data.folders import Advice
from clove_ssl.data.names import FOREIGN_SUFFIXES, how_to_convert, is_image_name, suffix_of
from clove_ssl.data.sources import (
    FolderSource,
    ImageSource,
    TarSource,
    is_shard_name,
    source_warnings,
)
from clove_ssl.data.whole_files import read_whole
from clove_ssl.errors import UserError
from clove_ssl.predicting.video import Video, is_video_name

_AHEAD = 4  # images that each reading thread may be ahead
_MOST_THREADS = 8
_RESULTS = (".jpg", ".png", ".txt")  # what is written for an image, behind its place
_MOST_BYTES = 240  # of a name that a number is added to
_ADVICE = Advice(shards="name the files: {}", otherwise="name another folder, or a video file")

Load = Callable[[], Tensor]


@dataclass(frozen=True)
class InputImage:
    """One image, or why it is none."""

    name: str
    place: str  # where its results go, relative and without a suffix
    pixels: Tensor | str  # uint8 (3, H, W), or the reason


@dataclass(frozen=True)
class _Item:
    """An image that has not been read yet."""

    name: str
    place: str
    load: Load


class Inputs:
    """All images that were named, in order.

    Args:
        given: Images, folders, shards and videos.
        every: Of a video, every so many-th frame is taken.
    """

    def __init__(self, given: Sequence[Path], *, every: int = 1) -> None:
        self._parts = [_open(path, every=every) for path in given]
        if not self._parts:
            raise UserError("No images were named. For example: clove predict RUN photos/ --out P")

    @property
    def count(self) -> int | None:
        """How many images there are; None where a video does not say."""
        counts = [part.count for part in self._parts]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def warnings(self) -> Iterator[str]:
        """What was found but is not looked at, in words."""
        for part in self._parts:
            yield from part.warnings()

    def __iter__(self) -> Iterator[InputImage]:
        """Read the images, some ahead of the one that is asked for."""
        taken: set[str] = set()
        threads = max(1, min(_MOST_THREADS, available_cores()))
        waiting: deque[tuple[_Item, Future[Tensor | str]]] = deque()
        with ThreadPoolExecutor(threads) as readers:
            for part in self._parts:
                for item in part.items():
                    waiting.append((item, readers.submit(_read, item.load)))
                    if len(waiting) > threads * _AHEAD:
                        yield _done(*waiting.popleft(), taken)
            while waiting:
                yield _done(*waiting.popleft(), taken)


class _Part:
    """The images of one argument."""

    count: int | None

    def warnings(self) -> Iterator[str]:
        """What is there but not among the images."""
        yield from ()

    def items(self) -> Iterator[_Item]:
        raise NotImplementedError


class _Images(_Part):
    """Images of a source, whose names may go through ``place`` to become paths."""

    def __init__(self, source: ImageSource, place: Callable[[str], str]) -> None:
        self._source, self._place = source, place
        self.count = len(source)

    def warnings(self) -> Iterator[str]:
        yield from source_warnings(self._source)

    def items(self) -> Iterator[_Item]:
        for index in range(len(self._source)):
            name = self._source.name(index)
            yield _Item(name, self._place(name), lambda at=index: decode(self._source.read(at)))  # type: ignore[misc]


class _OneImage(_Part):
    """A file."""

    count = 1

    def __init__(self, path: Path) -> None:
        self._path = path

    def items(self) -> Iterator[_Item]:
        yield _Item(str(self._path), self._path.stem, lambda: decode(read_whole(self._path)))


class _Frames(_Part):
    """Frames of a video; they are decoded one after the other, whoever reads them."""

    def __init__(self, path: Path, *, every: int) -> None:
        self._video, self._every = Video(path), every
        frames = self._video.frames
        self.count = None if frames is None else -(-frames // every)

    def items(self) -> Iterator[_Item]:
        number = 0
        try:
            for number, frame in self._video.read(every=self._every):
                yield self._item(number, lambda pixels=frame: pixels)  # type: ignore[misc]
        except DecodeError as error:
            yield self._item(number + 1, partial(_fail, error))

    def _item(self, number: int, load: Load) -> _Item:
        place = f"{self._video.path.stem}/frame_{number:06d}"
        return _Item(f"{self._video.path}:frame {number}", place, load)


def _fail(error: DecodeError) -> Tensor:
    raise error


def _open(path: Path, *, every: int) -> _Part:
    text = os.path.expanduser(str(path))
    if os.path.isdir(text):
        return _Images(FolderSource(text, advice=_ADVICE), _place_of_file)
    if is_shard_name(text):
        return _Images(TarSource(text), _place_of_member)
    if not os.path.exists(text):
        raise UserError(
            f"{path} does not exist. Name images, folders of images, .tar shards or video files."
        )
    if not os.path.isfile(text):  # a decoder would wait for ever for a pipe
        raise UserError(f"{path} is no file. Name images, folders, .tar shards or video files.")
    if is_video_name(text):
        return _Frames(Path(text), every=every)
    if (suffix := suffix_of(text)) in FOREIGN_SUFFIXES:
        raise UserError(
            f"{suffix} files such as {path} cannot be decoded. "
            f"{how_to_convert(suffix, os.path.dirname(text))}"
        )
    if not is_image_name(text):
        raise UserError(
            f"{path} is neither an image nor a folder, a .tar shard or a video, by its name. Name "
            "one of these."
        )
    return _OneImage(Path(text))


def _place_of_file(name: str) -> str:
    return str(PurePosixPath(name).with_suffix(""))


def _place_of_member(name: str) -> str:
    """``shards/000.tar:a/b.jpg`` becomes ``000/a/b``."""
    shard, _, member = name.partition(".tar:")
    return str(PurePosixPath(shard).name / PurePosixPath(member).with_suffix(""))


def _read(load: Load) -> Tensor | str:
    try:
        return load()
    except DecodeError as error:
        return str(error)
    except OSError as error:
        return error.strerror or str(error)


def _done(item: _Item, pixels: Future[Tensor | str], taken: set[str]) -> InputImage:
    return InputImage(item.name, _free(_safe(item.place), taken), pixels.result())


def _safe(place: str) -> str:
    """A place below the output folder, in no folder that is called as results are."""
    *folders, name = place.split("/")
    kept = (part for part in folders if part not in ("", ".", ".."))
    return "/".join(
        [*(f"{part}_" if part.lower().endswith(_RESULTS) else part for part in kept), name]
    )


def _free(place: str, taken: set[str]) -> str:
    """A place that no other image has, whatever the file system thinks of upper case."""
    free, number = place, 1
    while free.lower() in taken:
        number += 1
        free = f"{_with_room(place)}-{number}"
    taken.add(free.lower())
    return free


def _with_room(place: str) -> str:
    """A place to whose name a number and a suffix can be added; file systems allow 255 bytes."""
    folder, slash, name = place.rpartition("/")
    return folder + slash + os.fsdecode(os.fsencode(name)[:_MOST_BYTES])
