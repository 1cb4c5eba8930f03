"""Label files as text and values; whatever they hold, nothing worse than a message comes of it."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from clove_ssl.config.regular_files import read_regular
from clove_ssl.data.folders import list_images, unlisted
from clove_ssl.data.names import is_image_name
from clove_ssl.data.whole_files import open_regular
from clove_ssl.errors import UserError
from clove_ssl.tasks.loading.images import in_threads, size_of_file
from clove_ssl.tasks.own.dataset import ALL, TEST, TRAIN, VAL, Colour, Problems

NO_IMAGE = "label files have no image and were left out"
NO_LABELS = "images have no label file and were left out (an empty one says: no objects)"
_TWICE = "label files are of an image that another one belongs to and were left out"
LARGEST_LABELS = 32 * 2**20
"""Bytes of the labels of one image; LabelMe may keep the image in them."""
LARGEST_TEXT = 2**20
"""Bytes of a list of names."""
MOST_CLASSES = 10_000
LONGEST_NAME = 200
"""Characters of a class name, which is drawn on pictures."""
MOST_FILES = 5_000_000
_HEAD = 2**16
"""Bytes that show what a file is."""
_LISTS = ("train", "val", "test", "trainval")
_DEPTHS = ("", "*/", "*/*/")
_SPLITS = {
    **dict.fromkeys(("train", "training", "trainval"), TRAIN),
    **dict.fromkeys(("val", "valid", "validation", "dev"), VAL),
    **dict.fromkeys(("test", "testing"), TEST),
}


def read_text(path: Path, *, largest: int = LARGEST_TEXT) -> str:
    """The text of a small file in UTF-8."""
    try:
        with open_regular(path) as file:
            data = file.read(largest + 1)
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror}. Copy it again, or take it out."
        ) from None
    if len(data) > largest:
        raise UserError(
            f"{path} has more than {largest:,} bytes, which no file of its kind has. Expected "
            "labels; take it out, or give the folder or file that --data means."
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path} is no text in UTF-8. Save it as UTF-8, or take it out.") from None


def read_head(path: Path) -> bytes:
    """The beginning of a file; nothing of what cannot be read or is no file."""
    try:
        return read_regular(path, most=_HEAD)
    except OSError:
        return b""


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    try:
        return json.loads(read_text(path, largest=LARGEST_LABELS))
    except ValueError as error:
        raise UserError(f"{path} is no JSON: {error}. Copy it again, or take it out.") from None
    except RecursionError:
        raise UserError(
            f"{path} has too many lists inside one another. Expected labels; take it out."
        ) from None


def read_names(path: Path) -> tuple[str, ...]:
    """Names of classes, one a line; of CVAT's ``name:colour:...`` the name."""
    lines = [line.strip() for line in read_text(path).splitlines()]
    is_label_map = path.name == "labelmap.txt"
    names = [line.partition(":")[0].strip() if is_label_map else line for line in lines]
    kept = tuple(name for name in names if name and not (is_label_map and name.startswith("#")))
    check_names(kept, path)
    return kept


def parts_of_name(name: str) -> list[str]:
    """Folders and file of a name, from whatever system."""
    return [part for part in re.split(r"[/\\]", name) if part]


def read_colours(path: Path) -> tuple[Colour, ...]:
    """The colours of CVAT's ``labelmap.txt``, in the order of its names; none of another list."""
    if path.name != "labelmap.txt":
        return ()
    lines = [line.strip() for line in read_text(path).splitlines()]
    entries = [line.split(":") for line in lines if line and not line.startswith("#")]
    texts = [fields[1] if len(fields) > 1 else "" for fields in entries if fields[0].strip()]
    found = [re.findall(r"\d{1,3}", text) for text in texts]
    colours = tuple((int(n[0]), int(n[1]), int(n[2])) for n in found if len(n) == 3)
    if len(colours) < len(texts):
        return ()
    if len(set(colours)) < len(colours) or max(map(max, colours), default=0) > 255:
        raise UserError(
            f"{path} gives two classes one colour, or one above 255. Expected a colour for each "
            "class, such as person:192,128,128::; correct the file."
        )
    return colours


def check_names(names: tuple[str, ...], path: Path) -> None:
    """Refuse class names that a model could not tell apart."""
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice or not 1 <= len(names) <= MOST_CLASSES:
        example = f" ({twice[0]!r} comes twice)" if twice else ""
        raise UserError(
            f"{path} names {len(names):,} classes{example}; expected 1 to {MOST_CLASSES:,}, each "
            "once. Correct the file."
        )
    odd = [name for name in names if not name.strip() or not name.isprintable()]
    if odd:
        raise UserError(
            f"{path} names a class {odd[0][:80]!r}; expected words on one line. Correct the file."
        )
    longest = max(names, key=len)
    if len(longest) > LONGEST_NAME:
        raise UserError(
            f"{path} names a class with {len(longest):,} characters, {longest[:20]!r} ...; "
            f"expected {LONGEST_NAME} at most. Correct the file."
        )


def listed_or_used(
    root: Path, lists: Sequence[str], used: Set[str], *, without: Set[str]
) -> tuple[str, ...]:
    """The classes of a list that names all that are used, or else these in alphabetical order."""
    for path in (root / name for name in lists):
        if path.is_file():
            names = tuple(name for name in read_names(path) if name not in without)
            if used <= set(names):
                return names
    return tuple(sorted(used))


def split_of(*texts: str) -> str:
    """The split that a name speaks of, such as ``instances_val2017`` or ``valid``."""
    for text in texts:
        for word in re.findall(r"[a-z]+", text.lower()):
            if word in _SPLITS:
                return _SPLITS[word]
    return ALL


def split_of_path(path: Path, root: Path) -> str:
    """The split that one of the folders between ``root`` and a file names."""
    try:
        folders = path.relative_to(root).parts[:-1]
    except ValueError:
        folders = (path.parent.name,)
    return next((_SPLITS[part.lower()] for part in folders if part.lower() in _SPLITS), ALL)


def read_lists(root: Path, kind: str) -> dict[str, list[str]]:
    """Names by split, from VOC's ``ImageSets/<kind>``; trainval where there is no train."""
    lists: dict[str, list[str]] = {}
    folders = {*(folder for depth in _DEPTHS for folder in root.glob(f"{depth}ImageSets/{kind}"))}
    for folder in sorted(folders):
        texts = {name: folder / f"{name}.txt" for name in _LISTS}
        present = {name: path for name, path in texts.items() if path.is_file()}
        if "train" in present:
            present.pop("trainval", None)
        for name, path in present.items():
            lines = read_text(path, largest=LARGEST_LABELS).splitlines()
            names = [line.split()[0] for line in lines if line.split()]
            lists.setdefault(split_of(name), []).extend(names)
    return lists


def refuse_whole_disk(folder: Path, *, named_in: Path | None = None) -> None:
    """Refuse to search a folder that holds the whole disk, or the home folders of all users."""
    real = folder.resolve()
    if real != Path(real.anchor) and real not in Path.home().resolve().parents:
        return
    where = f"{named_in} names {folder}" if named_in else f"The data is to be searched in {folder}"
    raise UserError(
        f"{where}, which holds much more than images and labels, and would be searched to its last "
        "file. Expected the folder of the data alone; "
        + ("correct the file." if named_in else "give that one with --data.")
    )


def images_below(root: Path, *, named_in: Path | None = None) -> list[Path]:
    """All images below a folder, which a file may have named."""
    refuse_whole_disk(root, named_in=named_in)
    return [root / name for name in list_images(str(root)).images]


def files_below(root: Path, *suffixes: str) -> list[Path]:
    """Files with these suffixes below a folder, sorted; hidden ones are left alone."""
    refuse_whole_disk(root)
    found: list[Path] = []
    for folder, folders, names in os.walk(root, onerror=_refuse_unlisted):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in names:
            if name.lower().endswith(suffixes) and not name.startswith("."):
                found.append(Path(folder, name))
        if len(found) > MOST_FILES:
            raise UserError(f"{root} has more than {MOST_FILES:,} label files. Give a part of it.")
    return sorted(found)


def _refuse_unlisted(error: OSError) -> None:
    raise unlisted(error.filename, error, holds="labels")


class Images:
    """The images below a folder, found by the names that labels give them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.paths = images_below(root)
        self._by_stem: dict[str, list[Path]] = {}
        for path in self.paths:
            self._by_stem.setdefault(path.stem, []).append(path)

    def beside(self, labels: Path, name: str = "") -> Path | None:
        """The image that a file of labels belongs to: the one it names, or of the same stem."""
        named = Path(name.replace("\\", "/")).name
        if is_image_name(named) and os.path.isfile(labels.parent / named):
            return labels.parent / named
        for stem in dict.fromkeys((labels.stem, Path(named).stem)):
            known = self._by_stem.get(stem, [])
            if known:
                # Of several with one name the one in the most similar place.
                return max(known, key=lambda path: _shared(path, labels))
        return None

    def of_labels(self, names: Mapping[Path, str], problems: Problems) -> dict[Path, Path]:
        """The image of each file of labels, which may name it; notes what belongs to nothing."""
        places = {labels: self.beside(labels, name) for labels, name in names.items()}
        owners: dict[Path, Path] = {}
        # Of several files for one image that which is called like it counts.
        for labels in sorted(places, key=lambda labels: not _is_namesake(labels, places[labels])):
            image = places[labels]
            if image is None:
                problems.add(NO_IMAGE, labels)
            elif owners.setdefault(image, labels) != labels:
                problems.add(_TWICE, labels)
        folders = {image.parent for image in owners}
        for image in self.paths:
            if image.parent in folders and image not in owners:
                problems.add(NO_LABELS, image)
        return {
            labels: image for labels, image in places.items() if image and owners[image] == labels
        }


def _is_namesake(labels: Path, image: Path | None) -> bool:
    return image is None or labels.stem == image.stem


def _shared(a: Path, b: Path) -> int:
    """How many folders two paths have in common; splits count as folders wherever they stand."""
    together = len(os.path.commonpath([a, b]).split(os.sep))
    return together + len(set(a.parts) & set(b.parts) & _SPLITS.keys())


def sizes_of(paths: Iterable[Path]) -> dict[Path, tuple[int, int]]:
    """Height and width of image files; the first that cannot be read is an error."""
    listed = list(dict.fromkeys(paths))
    return dict(zip(listed, in_threads(size_of_file, listed), strict=True))


def text_field(entry: Any, name: str) -> str:
    """A field of a JSON object if it is text, else nothing."""
    value = entry.get(name) if isinstance(entry, Mapping) else None
    return value if isinstance(value, str) else ""
