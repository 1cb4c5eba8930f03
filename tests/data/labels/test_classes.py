"""Classes of images: from folders, from shards, and what has none."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from clove_ssl.config.pretraining import DataConfig
from clove_ssl.data.labels.classes import find_class_labels, read_class_labels
from clove_ssl.data.scenes import SceneSource
from clove_ssl.data.sources import ImageSource, open_source
from clove_ssl.errors import UserError


def picture() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), (10, 200, 30)).save(buffer, "PNG")
    return buffer.getvalue()


def write_shard(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path


def opened(path: Path | str) -> ImageSource:
    return open_source(DataConfig(source=str(path)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("dogs/a.png", "dogs/more/b.png", "cats/c.png", "loose.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(picture())
    return tmp_path


def test_the_first_folder_is_the_class(folder: Path) -> None:
    labels = read_class_labels(opened(folder))
    names = [opened(folder).name(index) for index in range(4)]
    assert names == ["cats/c.png", "dogs/a.png", "dogs/more/b.png", "loose.png"]
    assert labels.class_names == ("cats", "dogs")
    assert [labels[index] for index in range(4)] == [0, 1, 1, None]
    assert labels.labelled().tolist() == [0, 1, 2]


def test_a_list_of_files_has_the_classes_of_its_folders(folder: Path) -> None:
    (folder / "list.txt").write_text("./dogs/a.png\ncats/c.png\nloose.png\n")
    labels = read_class_labels(opened(folder / "list.txt"))
    assert [labels[index] for index in range(3)] == [1, 0, None]


def test_shards_have_their_numbers_beside_the_images(tmp_path: Path) -> None:
    write_shard(
        tmp_path / "a-0.tar",
        {"0.png": picture(), "0.cls": b"7", "x/1.png": picture(), "x/1.cls": b" 12\n"},
    )
    write_shard(tmp_path / "a-1.tar", {"0.cls": b"12", "0.png": picture(), "2.png": picture()})
    labels = read_class_labels(opened(tmp_path / "a-{0..1}.tar"))
    assert labels.class_names == ("7", "12")
    assert [labels[index] for index in range(4)] == [0, 1, 1, None]


def test_numbers_with_leading_zeros_are_the_same_class(tmp_path: Path) -> None:
    members = {"0.png": picture(), "0.cls": b"03", "1.png": picture(), "1.cls": b"3"}
    write_shard(tmp_path / "a.tar", {**members, "2.png": picture(), "2.cls": b"10"})
    assert read_class_labels(opened(tmp_path / "a.tar")).class_names == ("3", "10")


@pytest.mark.parametrize("content", [b"dog", b"-1", b"", b"1 2", b"\xff\xfe"])
def test_a_label_that_is_no_number_is_named(tmp_path: Path, content: bytes) -> None:
    write_shard(tmp_path / "a.tar", {"0.png": picture(), "0.cls": content})
    with pytest.raises(UserError, match=r"a\.tar:0\.cls holds .*expected the number"):
        read_class_labels(opened(tmp_path / "a.tar"))


def test_labels_of_a_shard_that_is_cut_off_are_those_before_the_cut(tmp_path: Path) -> None:
    members = {}
    for number in range(3):
        members |= {f"{number}.png": picture(), f"{number}.cls": str(number).encode()}
    path = write_shard(tmp_path / "a.tar", members)
    path.write_bytes(path.read_bytes()[: 4 * 1024 + 512 + 20])  # in the third image
    labels = read_class_labels(opened(path))
    assert labels.class_names == ("0", "1")
    assert labels.numbers.tolist() == [0, 1]


def test_links_and_outside_paths_are_no_labels(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    write_shard(path, {"0.png": picture(), "1.png": picture(), "1.cls": b"1", "../0.cls": b"0"})
    assert find_class_labels(opened(path)) is None  # one class alone


@pytest.mark.parametrize("kind", ["one folder", "no folder", "scenes"])
def test_a_source_without_two_classes_is_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.png").write_bytes(picture())
    source = {
        "one folder": lambda: opened(tmp_path),
        "no folder": lambda: opened(tmp_path / "train"),
        "scenes": lambda: SceneSource(2, 64),
    }[kind]()
    assert find_class_labels(source) is None
    with pytest.raises(UserError, match="no two classes.*one folder per class"):
        read_class_labels(source)
