"""Several sources as one, and which images a run was started with."""

from __future__ import annotations

import pickle
from pathlib import Path

from builders.files.photos import save_photos

from clove_ssl.config.pretraining import DataConfig
from clove_ssl.data.identity import fingerprint, located
from clove_ssl.data.joined import JoinedSource
from clove_ssl.data.sources import open_source


def test_images_follow_each_other_in_the_order_of_their_sources(tmp_path: Path) -> None:
    save_photos(tmp_path / "b", 2)
    save_photos(tmp_path / "a", 3)
    data = DataConfig(source=str(tmp_path / "b"), more=(str(tmp_path / "a"),))
    source = pickle.loads(pickle.dumps(open_source(data)))  # as a worker gets it
    assert isinstance(source, JoinedSource)
    names = [source.name(index) for index in range(len(source))]
    assert [Path(name).parent.name for name in names] == ["b", "b", "a", "a", "a"]
    assert len(set(names)) == 5
    assert all(source.read(i) == Path(name).read_bytes() for i, name in enumerate(names))


def test_a_fingerprint_knows_names_and_not_places(tmp_path: Path) -> None:
    save_photos(tmp_path / "a", 3)
    first, second, third = sorted((tmp_path / "a").iterdir())
    files = tmp_path / "list.txt"
    files.write_text(f"{first}\n{second}\n")
    listed = fingerprint(open_source(DataConfig(source=str(files))))
    before = fingerprint(open_source(DataConfig(source=str(tmp_path / "a"))))
    moved = (tmp_path / "a").rename(tmp_path / "elsewhere")
    assert fingerprint(open_source(DataConfig(source=str(moved)))) == before
    files.write_text(f"{moved / first.name}\n{moved / second.name}\n")
    assert fingerprint(open_source(DataConfig(source=str(files)))) == listed
    (moved / third.name).rename(moved / "other.jpg")
    assert fingerprint(open_source(DataConfig(source=str(moved)))) != before
    assert fingerprint(open_source(DataConfig(source="scenes", scenes_count=3))) == ""


def test_paths_are_made_to_hold_anywhere() -> None:
    data = located(DataConfig(source="photos", more=("s3://bucket/{0..3}.tar", "scenes")))
    assert data.source == str(Path.cwd() / "photos")
    assert data.more == ("s3://bucket/{0..3}.tar", "scenes")
