"""Which images a run was started with, and how large they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders.files.photos import save_photos

from clove_ssl.config.pretraining import DataConfig
from clove_ssl.data.sources import open_source
from clove_ssl.errors import UserError
from clove_ssl.pretraining.images import fingerprint, open_images


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


def test_other_images_than_those_of_a_checkpoint_are_refused(tmp_path: Path) -> None:
    save_photos(tmp_path, 2)
    images = open_images(DataConfig(source=str(tmp_path)))
    images.check_same({})  # of a new run
    images.check_same({"images": 2})  # of an earlier version, without names
    images.check_same({"images": 2, "names": images.names})
    with pytest.raises(UserError, match="has 2 images, but this run was started with 3"):
        images.check_same({"images": 3, "names": images.names})
    with pytest.raises(UserError, match="as many images .* but other names"):
        images.check_same({"images": 2, "names": "of others"})


def test_files_that_cannot_be_read_have_no_size(tmp_path: Path) -> None:
    save_photos(tmp_path, 2)
    sizes = open_images(DataConfig(source=str(tmp_path)))
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    assert open_images(DataConfig(source=str(tmp_path))).shorter_side == sizes.shorter_side
    assert open_images(DataConfig(source="scenes", scenes_size=96)).shorter_side == 96
