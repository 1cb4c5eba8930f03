"""Images with a class: which are kept, and that a class stays with its image."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from builders.files.odd_files import write_odd_folder
from builders.files.small_sources import member, write_tar
from PIL import Image

from clove_ssl.config.pretraining import DataConfig
from clove_ssl.data.labels.classified import main_class, only_labelled
from clove_ssl.data.order import Draws
from clove_ssl.data.reading import EncodedImages, RenderedViews, view_batch
from clove_ssl.data.scenes import SCENE_CLASSES, SceneSource
from clove_ssl.data.sources import FolderSource, TarSource, open_source, source_warnings
from clove_ssl.errors import UserError
from clove_ssl.methods.supervised.config import plain_crop

SPECS = plain_crop().specs()


def save_photo(path: Path, level: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (40, 30), (level, level, level)).save(path)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two cats, three dogs and two photos of neither."""
    places = ["a.png", "cats/1.png", "cats/deep/2.png", "dogs/1.png", "dogs/2.png", "dogs/3.png"]
    for level, place in enumerate([*places, "z.png"]):
        save_photo(tmp_path / "photos" / place, level)
    return tmp_path / "photos"


def everything(count: int) -> Draws:
    return Draws(np.zeros(count, np.int64), np.arange(count))


def test_class_folders_give_classes_and_loose_images_are_left_out(photos: Path) -> None:
    source = only_labelled(FolderSource(photos))
    assert source.class_names == ("cats", "dogs")
    names = [source.name(index) for index in range(len(source))]
    assert names == ["cats/1.png", "cats/deep/2.png", "dogs/1.png", "dogs/2.png", "dogs/3.png"]
    assert [source.label(index) for index in range(len(source))] == [0, 0, 1, 1, 1]
    assert source.read(2) == (photos / "dogs/1.png").read_bytes()
    assert "2 images have no class and are left out" in list(source_warnings(source))


def test_shards_give_the_numbers_beside_their_images(tmp_path: Path) -> None:
    members = [member("0.jpg", b"a"), member("0.cls", b"7"), member("1.jpg", b"b")]
    members += [member("2.cls", b"3\n"), member("2.jpg", b"c")]
    write_tar(tmp_path / "0.tar", *members)
    source = only_labelled(TarSource(tmp_path / "0.tar"))
    assert source.class_names == ("3", "7")
    assert [source.label(index) for index in range(len(source))] == [1, 0]
    assert [source.read(index) for index in range(len(source))] == [b"a", b"c"]
    assert source.left_out == 1


def test_the_class_of_a_scene_is_its_largest_kind_of_object() -> None:
    scenes = SceneSource(5, size=64)
    source = only_labelled(scenes)
    assert source.class_names == ("background", *SCENE_CLASSES)
    for index in range(len(source)):
        pixels = scenes.scene(index).semantic
        areas = {name: (pixels == name).sum() for name in np.unique(pixels) if name}
        assert areas[source.label(index)] == max(areas.values())
        assert main_class(scenes, index) == source.label(index)


def test_images_without_classes_are_refused(tmp_path: Path) -> None:
    save_photo(tmp_path / "loose/1.png", 0)
    save_photo(tmp_path / "one/cats/1.png", 0)
    for folder in ("loose", "one"):
        with pytest.raises(UserError, match="one folder per class"):
            only_labelled(FolderSource(tmp_path / folder))


def test_a_labelled_source_travels_to_workers(photos: Path) -> None:
    source = pickle.loads(pickle.dumps(only_labelled(FolderSource(photos))))
    assert [source.label(index) for index in range(len(source))] == [0, 0, 1, 1, 1]


def test_batches_of_both_readers_carry_the_classes(photos: Path) -> None:
    source, config = only_labelled(FolderSource(photos)), DataConfig()
    rendered = RenderedViews(source, SPECS, config, seed=0)[everything(5)]
    assert view_batch(rendered, SPECS).labels.tolist() == [0, 0, 1, 1, 1]
    encoded = EncodedImages(source, SPECS, config, seed=0, keeps_jpegs=True)
    assert encoded[everything(5)].labels.tolist() == [0, 0, 1, 1, 1]
    assert view_batch(rendered, SPECS).to("meta").labels.device.type == "meta"


def test_an_image_that_stands_in_for_a_broken_one_brings_its_own_class(photos: Path) -> None:
    (photos / "cats/deep/2.png").write_bytes(b"broken")
    source = only_labelled(FolderSource(photos))
    batch = RenderedViews(source, SPECS, DataConfig(), seed=0)[everything(5)]
    assert [bad.name for bad in batch.bad] == ["cats/deep/2.png"]
    assert batch.labels.tolist() == [0, 1, 1, 1, 1]
    assert batch.pixels[0][1].unique().tolist() == [3]  # the first dog


def test_sources_that_nobody_asked_for_classes_have_none(tmp_path: Path) -> None:
    write_odd_folder(tmp_path / "odd")
    config = DataConfig(source=str(tmp_path / "odd"), max_bad=0.9)
    source = open_source(config)
    batch = RenderedViews(source, SPECS, config, seed=0)[everything(len(source))]
    assert batch.labels is None
    assert view_batch(batch, SPECS).labels is None
