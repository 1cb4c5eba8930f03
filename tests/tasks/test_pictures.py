"""Pictures of predictions: everything is where it was found, and names can be read."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from builders.labels.small_datasets import random_dataset
from PIL import Image

from clove_ssl.errors import UserError
from clove_ssl.painting import predictions
from clove_ssl.painting.predictions import (
    Things,
    paint_classes,
    paint_classes_in_place,
    paint_things,
    paint_things_in_place,
    tone_colour,
    write_sheet,
)
from clove_ssl.tasks.detection.coco_scores import coco_truth
from clove_ssl.tasks.labels.samples import Annotation, DetectionDataset, Sample
from clove_ssl.tasks.pictures import paint_detections, paint_label_maps, spread, true_things

GREY = np.full((120, 240, 3), 128, np.uint8)
BAND = 22  # pixels of the caption
SCALE = 2  # 480 / 240


def pixel(picture: Image.Image, x: float, y: float) -> tuple[int, ...]:
    """The colour at a place of the image."""
    return picture.getpixel((int(x * SCALE), int(y * SCALE) + BAND))


def one_box(label: str = "cup", **more: object) -> Things:
    return Things(np.array([[40.0, 50.0, 100.0, 90.0]]), (label,), (3,), **more)


def test_a_box_has_its_colour_at_its_edges_and_none_inside() -> None:
    picture = paint_things(GREY, one_box(), caption="truth")
    assert picture.size == (480, 240 + BAND)
    for x, y in ((70, 50.1), (70, 89.6), (40.1, 70), (99.6, 70)):
        assert pixel(picture, x, y) == tone_colour(3)
    for x, y in ((70, 70), (30, 70), (110, 70), (70, 100)):
        assert pixel(picture, x, y) == (128, 128, 128)


def test_a_name_stands_above_its_box() -> None:
    with_name = np.asarray(paint_things(GREY, one_box(), caption=""))
    without = np.asarray(paint_things(GREY, one_box(""), caption=""))
    rows, columns = np.nonzero((with_name != without).any(-1))
    assert rows.min() >= BAND + 2 * 50 - 20
    assert rows.max() < BAND + 2 * 50 + 1
    assert columns.min() >= 80
    assert len(rows) > 300  # letters on their ground


def test_many_outlines_in_a_photo_do_not_fill_the_memory() -> None:
    side, count = 1000, 100
    thing = Annotation((2.0, 2.0, 9.0, 9.0), 0, 49.0, mask=((2.0, 2.0, 9.0, 2.0, 9.0, 9.0),))
    sample = Sample(Path("a.jpg"), "a", side, side, (thing,) * count)
    photo = np.zeros((side, side, 3), np.uint8)
    tracemalloc.start()
    things = true_things(
        sample, DetectionDataset((sample,), ("cell",), (1,)), shown=["segmentation"]
    )
    picture = paint_things(photo, things, caption="")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.asarray(picture)[BAND:].any()
    assert peak < 0.6 * side * side * count


@pytest.mark.parametrize("size", [(70_000, 1), (1, 70_000)])
def test_strips_of_pixels_are_painted_in_little_time_and_memory(size: tuple[int, int]) -> None:
    strip, height = np.zeros((*size, 3), np.uint8), size[0]
    things = Things(np.array([[0.0, 0, *size[::-1]]] * 50), ("cup",) * 50, (1,) * 50)
    assert paint_things_in_place(strip, things).size == size[::-1]
    assert max(paint_things(strip, things, caption="").size) < 2000
    classes = np.arange(size[0] * size[1]).reshape(size).astype(np.uint8) % 3
    assert paint_classes_in_place(strip, classes, ("none", "cup", "hat")).height == height


def test_a_mask_tints_its_pixels_only() -> None:
    masks = np.zeros((1, 120, 240), bool)
    masks[0, 60:80, 50:90] = True
    picture = paint_things(GREY, one_box(masks=masks), caption="")
    expected = [round(128 + 0.45 * (channel - 128)) for channel in tone_colour(3)]
    np.testing.assert_allclose(pixel(picture, 70, 70), expected, atol=1)
    assert pixel(picture, 45, 70) == (128, 128, 128)


def test_keypoints_are_dots_with_lines_between_those_that_are_seen() -> None:
    points = np.array([[[50.0, 60.0, 2.0], [80.0, 60.0, 1.0], [80.0, 80.0, 0.0]]])
    things = one_box(keypoints=points, bones=((0, 1), (1, 2)))
    picture = paint_things(GREY, things, caption="")
    for x, y in ((50, 60), (80, 60), (65, 60)):
        assert pixel(picture, x, y) == tone_colour(3)
    for x, y in ((80, 80), (80, 70)):
        assert pixel(picture, x, y) == (128, 128, 128)


def test_names_never_cover_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = []
    original = predictions._enlarge
    monkeypatch.setattr(
        predictions, "_enlarge", lambda image: pages.append(original(image)) or pages[-1]
    )
    boxes = np.array([[5.0 * n, 3.0 * n, 5.0 * n + 30, 3.0 * n + 20] for n in range(30)])
    paint_things(GREY, Things(boxes, ("dining table",) * 30, tuple(range(30))), caption="")
    (page,) = pages
    assert len(page.taken) >= 8
    for number, place in enumerate(page.taken):
        assert 0 <= place[0] < place[2] <= 480
        assert 0 <= place[1] < place[3] <= 240
        assert not any(predictions._meet(place, other) for other in page.taken[:number])


def test_neighbouring_classes_have_different_colours() -> None:
    colours = np.array([tone_colour(number) for number in range(80)], int)
    assert len({tuple(colour) for colour in colours.tolist()}) == 80
    assert np.abs(np.diff(colours, axis=0)).max(axis=1).min() > 60


def test_class_maps_tint_all_but_the_background() -> None:
    labels = np.zeros((120, 240), np.uint8)
    labels[40:80, 100:140], labels[100:, :] = 2, 255
    picture = paint_classes(GREY, labels, ("none", "cup", "hat"), caption="truth")
    assert pixel(picture, 200, 60) == (128, 128, 128)
    assert pixel(picture, 200, 110) == (224, 224, 224)
    expected = [round(128 + 0.45 * (channel - 128)) for channel in tone_colour(2)]
    np.testing.assert_allclose(pixel(picture, 120, 60), expected, atol=1)


def test_rows_of_a_sheet_stand_below_each_other(tmp_path: Path) -> None:
    red, blue = Image.new("RGB", (30, 10), "red"), Image.new("RGB", (20, 40), "blue")
    path = write_sheet(tmp_path / "deep" / "sheet.png", [[red, blue], [blue]])
    with Image.open(path) as sheet:
        assert sheet.format == "PNG"
        assert sheet.size == (30 + 20 + 3 * 6, 40 + 40 + 3 * 6)
        assert sheet.getpixel((7, 7)) == (255, 0, 0)
        assert sheet.getpixel((44, 7)) == (0, 0, 255)
        assert sheet.getpixel((7, 55)) == (0, 0, 255)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="Pictures cannot be written to .*file"):
        write_sheet(tmp_path / "file" / "sheet.png", [[Image.new("RGB", (3, 3))]])


@pytest.mark.parametrize("labels", [{"bbox"}, {"bbox", "segmentation"}, {"bbox", "keypoints"}])
def test_detections_of_every_kind_are_drawn_beside_the_truth(
    tmp_path: Path, labels: set[str]
) -> None:
    dataset = random_dataset(tmp_path / "images", images=6, runs=True)
    kept = {"image_id", "category_id", *labels}
    records = [
        {name: value for name, value in entry.items() if name in kept} | {"score": score}
        for entry in coco_truth(dataset)["annotations"]
        for score in (0.9, 0.1)
    ]
    paths = paint_detections(dataset, records, tmp_path / "out", count=5)
    assert [path.name for path in paths] == ["predictions_1.png", "predictions_2.png"]
    with Image.open(paths[0]) as sheet:
        left, right = (np.asarray(sheet)[40:300, at : at + 480] for at in (6, 492))
    # The truth was found exactly; only names differ, which hold the score.
    assert (left == right).all(-1).mean() > 0.8
    assert not (left == right).all()


def test_images_without_detections_are_drawn_too(tmp_path: Path) -> None:
    dataset = random_dataset(tmp_path / "images", images=1)
    (path,) = paint_detections(dataset, [], tmp_path / "out")
    with Image.open(path) as sheet:
        assert sheet.width == 2 * 480 + 3 * 6


def test_class_maps_are_drawn_beside_the_truth(tmp_path: Path) -> None:
    labels = np.zeros((120, 240), np.uint8)
    images = [("a", GREY, labels, labels + 1)] * 5
    assert len(paint_label_maps(images, ("none", "cup"), tmp_path)) == 2


def test_chosen_samples_are_spread_over_the_test_set(tmp_path: Path) -> None:
    samples = random_dataset(tmp_path, images=7).samples
    assert [sample.identifier for sample in spread(samples, 3)] == [1, 3, 5]
    assert spread(samples, 99) == list(samples)


REDUCED = {
    "without red cones": ((0.15, 1.05, -0.20), (0.11, 0.79, 0.10), (0.0, -0.05, 1.05)),
    "without green cones": ((0.37, 0.86, -0.23), (0.28, 0.67, 0.05), (-0.01, 0.04, 0.97)),
}
"""How colours look to the two most frequent kinds of colour-blindness (Machado et al., 2009)."""


@pytest.mark.parametrize("eyes", REDUCED)
def test_the_first_classes_differ_for_the_colour_blind(eyes: str) -> None:
    colours = np.array([tone_colour(number) for number in range(7)], float)
    seen = np.clip(colours @ np.array(REDUCED[eyes]).T, 0, 255)
    distances = np.linalg.norm(seen[:, None] - seen[None], axis=-1)
    assert distances[~np.eye(7, dtype=bool)].min() > 40
    assert np.diagonal(distances, 1).min() > 100
