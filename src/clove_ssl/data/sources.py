"""Where images come from: folders, lists of files, tar shards, built-in scenes.

A source hands out the undecoded bytes of an image by its number. Sources are
pickled to worker processes; names are kept packed, and files are opened where
they are read. ``read`` raises ``OSError`` for what cannot be read, so that
the caller can report it and go on. Files that cannot be read are named, counted,
and forgiven up to a limit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Protocol

import numpy as np

from clove_ssl.config.pretraining import SCENES, DataConfig
from clove_ssl.config.regular_files import read_regular
from clove_ssl.data.decode import image_size
from clove_ssl.data.folders import Advice, list_images
from clove_ssl.data.labels.classified import LabelledImages
from clove_ssl.data.names import NameTable, find_shards, is_image_name
from clove_ssl.data.shards import ShardIndex, ShardReader, refuse_zip, shard_index
from clove_ssl.data.whole_files import check_size, read_whole
from clove_ssl.errors import UserError, counted

LARGEST_LIST = 2**31
"""Bytes of a list of files."""
SAMPLE = 16
"""Images whose size is looked at; reading all of a large source would take hours."""

_OF_TRAINING = Advice(shards='give a pattern: --data "{}"', otherwise="give --data another folder")


class ImageSource(Protocol):
    """Images by number."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> bytes:
        """The encoded image."""
        ...

    def name(self, index: int) -> str:
        """What to call the image in reports."""
        ...


def open_source(config: DataConfig) -> ImageSource:
    """The source that ``--data`` means, or several as one."""
    if not config.more:
        return _open_one(config)
    named = (config.source, *config.more)
    parts = [_open_one(replace(config, source=each, more=())) for each in named]
    return JoinedSource(parts, named)


def _open_one(config: DataConfig) -> ImageSource:
    if config.source == SCENES:
        from clove_ssl.data.scenes import SceneSource  # heavy, and rarely needed

        return SceneSource(count=config.scenes_count, size=config.scenes_size)
    if "://" in config.source:
        from clove_ssl.data.remote.shards import RemoteTarSource  # needs an extra

        return RemoteTarSource(config.source)
    path = os.path.expanduser(config.source)
    if os.path.isdir(path):
        return FolderSource(path)
    if is_shard_name(path) or (not os.path.exists(path) and any(c in path for c in "*?[{")):
        return TarSource(path)
    return ListSource(path)


def source_warnings(source: ImageSource) -> Iterator[str]:
    """What a source found but does not offer, in words."""
    for part in getattr(source, "parts", ()):
        yield from source_warnings(part)
    if isinstance(source, LabelledImages):
        yield from source_warnings(source.whole)
        if source.left_out:
            have = counted(source.left_out, "image has", "images have")
            yield f"{have} no class and {'is' if source.left_out == 1 else 'are'} left out"
    for shard in getattr(source, "damaged", ()):
        yield f"{shard} is cut off or damaged; only the images before that place are used"
    ignored = getattr(source, "ignored", 0)
    if ignored and isinstance(source, TarSource):
        members = counted(
            ignored,
            "member of the shards is a link, device or outside path",
            "members of the shards are links, devices or outside paths",
        )
        yield f"{members}; left alone"
    elif ignored:
        yield f"{counted(ignored, 'file has', 'files have')} no image suffix; left alone"
    if unread := getattr(source, "unread", ""):
        yield unread


def is_shard_name(path: str) -> bool:
    """Whether a file is called as shards are, compressed ones included, which are refused later."""
    name = os.path.basename(path).lower()
    return name.endswith((".tar", ".tgz")) or ".tar." in name


class _FileSource:
    """Images that are files of their own, with paths relative to a folder."""

    def __init__(self, root: str, names: list[str]) -> None:
        self.root = root
        self._names = NameTable.of(names)

    def __len__(self) -> int:
        return len(self._names)

    def name(self, index: int) -> str:
        """Path relative to the folder."""
        return self._names[index]

    def read(self, index: int) -> bytes:
        """The bytes of the file."""
        return read_whole(os.path.join(self.root, self._names[index]))


class FolderSource(_FileSource):
    """All images below a folder, sorted by relative path; see ``folders`` for links."""

    def __init__(self, path: str | Path, *, advice: Advice = _OF_TRAINING) -> None:
        root = os.path.abspath(path)
        if not os.path.isdir(root):
            raise _no_such_source(str(path))
        listing = list_images(root)
        if not listing.images:
            raise listing.no_images(str(path), advice)
        super().__init__(root, listing.images)
        self.unread = listing.unread_pictures(str(path))
        # Files without an image suffix, but for those that are named one line above.
        self.ignored = listing.tars + listing.others - listing.foreign.total()


def _no_such_source(path: str) -> UserError:
    where = "" if os.path.isabs(path) else f" in {os.getcwd()}"
    return UserError(
        f"--data {path} does not exist{where}. Expected a folder of images, a text file with one "
        'path per line, or .tar shards such as "shards/{000000..000099}.tar". To try things out '
        "with built-in images, type --data scenes."
    )


class ListSource(_FileSource):
    """Images named in a text file: one path per line, relative to the folder of that file.

    Blank lines and lines that start with ``#`` do not count. A path that is
    named twice is used twice.
    """

    def __init__(self, path: str | Path) -> None:
        root = os.path.dirname(os.path.abspath(path))
        names = _listed_paths(path)
        missing = [name for name in names if not os.path.isfile(os.path.join(root, name))]
        if missing:
            examples = "".join(f"\n  {name}" for name in missing[:5])
            raise UserError(
                f"{len(missing)} of the {len(names)} files listed in {path} do not exist:"
                f"{examples}\nPaths are taken relative to {root}; correct or remove these lines."
            )
        super().__init__(root, names)


def _listed_paths(path: str | Path) -> list[str]:
    if is_image_name(str(path)) and os.path.exists(path):
        raise UserError(
            f"--data {path} is a single image. Give the folder it is in: "
            f"--data {os.path.dirname(path) or '.'}"
        )
    try:
        data = read_regular(Path(path), most=LARGEST_LIST)
        if len(data) > LARGEST_LIST:
            raise UserError(
                f"The list {path} has more than {LARGEST_LIST:,} bytes. Give several, as in "
                "--data A.txt B.txt."
            )
        text = data.decode("utf-8-sig", "surrogateescape").replace("\r", "\n")
    except FileNotFoundError:
        raise _no_such_source(str(path)) from None
    except OSError as error:
        raise UserError(f"Cannot read the list {path}: {error.strerror}.") from None
    refuse_zip(data, str(path))
    lines = [line.strip() for line in text.split("\n")]
    names = [line for line in lines if line and not line.startswith("#")]
    if not names or "\0" in text:
        problem = "is not a text file" if "\0" in text else "lists no files"
        raise UserError(
            f"{path} {problem}. Expected one image path per line, relative to its own folder; "
            f"such a list is made with: find IMAGES -name '*.jpg' > list.txt"
        )
    return names


class TarSource:
    """Images in uncompressed tar shards, in the order of the pattern and of the shards."""

    def __init__(self, pattern: str | Path) -> None:
        self.shards = find_shards(str(pattern))
        self._reader = ShardReader([os.path.abspath(path) for path in self.shards])
        self._take(str(pattern), [shard_index(path) for path in self.shards])

    def _take(self, pattern: str, indexes: list[ShardIndex]) -> None:
        """Join the indexes of all shards into one numbering."""
        self.ignored = sum(index.ignored for index in indexes)  # unsafe members, left alone
        self.damaged = tuple(
            path for path, index in zip(self.shards, indexes, strict=True) if not index.complete
        )  # shards that end early; only their whole images are used
        self._names = NameTable.join([index.names for index in indexes])
        if not len(self._names):
            shards = counted(len(self.shards), "shard holds", "shards hold")
            raise UserError(
                f"{shards} no images in --data {pattern}. Expected "
                "members called .jpg, .png, .webp or the like; list them with tar -tf SHARD."
            )
        self._offsets = np.concatenate([index.offsets for index in indexes])
        self._sizes = np.concatenate([index.sizes for index in indexes])
        self._shard_ends = np.cumsum([len(index.names) for index in indexes])

    def __len__(self) -> int:
        return len(self._names)

    def name(self, index: int) -> str:
        """Shard and member, such as ``shards/000000.tar:000012.jpg``."""
        return f"{self.shards[self._shard_of(index)]}:{self._names[index]}"

    def read(self, index: int) -> bytes:
        """The bytes of the member."""
        shard, size = self._shard_of(index), int(self._sizes[index])
        check_size(size)
        return self._reader.read(shard, int(self._offsets[index]), size)

    def _shard_of(self, index: int) -> int:
        number = range(len(self))[index]
        return int(np.searchsorted(self._shard_ends, number, side="right"))


class JoinedSource:
    """Images of several sources as one, in the order in which these were named.

    Args:
        parts: The sources.
        names: What each of them was called, to tell apart files of the same name.
    """

    def __init__(self, parts: Sequence[ImageSource], names: Sequence[str]) -> None:
        self.parts = tuple(parts)
        self._names = tuple(names)
        self._ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, index: int) -> bytes:
        """The encoded image."""
        part, place = self._place(index)
        return self.parts[part].read(place)

    def name(self, index: int) -> str:
        """The name that its source gives it, behind that of the source."""
        part, place = self._place(index)
        return os.path.join(self._names[part], self.parts[part].name(place))

    def _place(self, index: int) -> tuple[int, int]:
        """The source of an image, and its number there."""
        number = range(len(self))[index]
        part = int(np.searchsorted(self._ends, number, side="right"))
        before = int(self._ends[part - 1]) if part else 0
        return part, number - before


def typical_shorter_side(source: ImageSource) -> int | None:
    """The shorter side in pixels of the middle one of some images; none if none can be read."""
    side: int | None = getattr(source, "size", None)  # generated scenes are all of one size
    if side is not None:
        return side
    count = min(SAMPLE, len(source))
    sides = [_shorter_side(source, index * len(source) // count) for index in range(count)]
    known = [side for side in sides if side is not None]
    return round(median(known)) if known else None


def _shorter_side(source: ImageSource, index: int) -> int | None:
    try:
        return min(image_size(source.read(index)))
    except Exception:  # what is wrong with a file is said where it is trained on
        return None


@dataclass(frozen=True)
class BadFile:
    """A file of the source that could not be read, and why."""

    name: str
    reason: str


class BadFiles:
    """All unreadable files a run has met, by name."""

    def __init__(
        self,
        config: DataConfig,
        images: int,
        *,
        known: Mapping[str, str] | None = None,
        record: Callable[[Mapping[str, str]], None] | None = None,
        names: str = "",
    ) -> None:
        """``known`` are those of an earlier start; ``record`` keeps them with the run.

        ``names`` is a fingerprint of the names of all images, which a checkpoint remembers.
        """
        self.reasons = dict(known or {})
        self.images = images
        self.names = names
        self._forgiven = forgiven_files(config, images)
        self._record = record

    def add(self, bad: BadFile) -> bool:
        """Remember a file; whether it was new."""
        is_new = bad.name not in self.reasons
        self.reasons[bad.name] = bad.reason
        return is_new

    def write_down(self) -> None:
        """Keep all that are known with the run, where this process does so."""
        if self._record is not None:
            self._record(self.reasons)

    def check(self) -> None:
        """Stop the run when there are too many."""
        count = len(self.reasons)
        if count <= self._forgiven and count < self.images:
            return
        examples = "\n".join(f"  {name}: {why}" for name, why in list(self.reasons.items())[:5])
        raise UserError(
            f"{count} of {self.images} files could not be read, more than the {self._forgiven} "
            f"that are allowed. The first ones:\n{examples}\nAll are named in log.txt. "
            f"{self._remedy()}"
        )

    def _remedy(self) -> str:
        """What to type; a share above 1 does not exist, and nothing can be learned from none."""
        count = len(self.reasons)
        if count >= self.images:
            return "Not one can be read: give --data other images, or repair these."
        allowed = min(1.0, 1.5 * count / self.images)
        return f"Repair or remove them, or allow more: --data.max-bad {allowed:.2g}"


def forgiven_files(config: DataConfig, images: int) -> int:
    """How many unreadable files a run tolerates."""
    return max(10, int(config.max_bad * images))
