"""``clove predict``: every kind of input and of result, and the same numbers as from Python."""

from __future__ import annotations

import csv
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders.tasks.exported_detectors import CLASSES, write_tiny_run
from PIL import Image

from clove_ssl import cli, load_finetuned
from clove_ssl.data.scenes import SceneSource
from clove_ssl.errors import UserError
from clove_ssl.finetuning.finetuned import FinetunedModel
from clove_ssl.predicting.inputs import Inputs
from clove_ssl.predicting.run import Tally, check_is_empty

SIZES = ((64, 64), (64, 64), (80, 52))  # width, height


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three photos, one of them in a folder of its own, and a file that is none."""
    folder = tmp_path_factory.mktemp("photos")
    (folder / "album").mkdir()
    scenes = SceneSource(3, size=80)
    for number, size in enumerate(SIZES):
        place = folder / ("album" if number == 2 else "") / f"{number}.png"
        Image.fromarray(scenes.scene(number).image).resize(size).save(place)
    (folder / "broken.jpg").write_bytes(b"no photo")
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A detector with masks, one with keypoints, and a segmenter."""
    folder = tmp_path_factory.mktemp("runs")
    tasks = ("coco-fpn", "coco-keypoints", "voc-semantic")
    return {task: write_tiny_run(folder / task, task)[0].path for task in tasks}


@pytest.fixture(scope="module")
def model(runs: dict[str, Path]) -> FinetunedModel:
    return load_finetuned(runs["coco-fpn"])


def predict(run: Path, *given: Path | str, out: Path) -> int:
    return cli.main(["predict", str(run), *map(str, given), "--out", str(out)])


def results(out: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / "predictions.json").read_text())
    return content


def test_results_are_those_of_the_python_call(
    runs: dict[str, Path],
    model: FinetunedModel,
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    assert predict(runs["coco-fpn"], photos, "--score", "0", "--batch", "3", out=out) == 0
    said = capsys.readouterr().out
    assert "broken.jpg is skipped: no known image format" in said
    assert (out / "skipped.txt").read_text().startswith("broken.jpg\t")
    content = results(out)
    assert [image["file_name"] for image in content["images"]] == ["0.png", "1.png", "album/2.png"]
    for image in content["images"]:
        found = model(photos / image["file_name"])
        own = [each for each in content["annotations"] if each["image_id"] == image["id"]]
        assert len(own) == len(found) > 0
        boxes = torch.tensor([each["bbox"] for each in own])
        boxes[:, 2:] += boxes[:, :2]
        torch.testing.assert_close(boxes, found.boxes, rtol=0, atol=1e-3)
        scores = torch.tensor([each["score"] for each in own])
        torch.testing.assert_close(scores, found.scores, rtol=0, atol=1e-5)
        assert [each["category_id"] - 1 for each in own] == found.classes.tolist()
        with Image.open((out / "pictures" / image["file_name"]).with_suffix(".jpg")) as picture:
            assert picture.size == (image["width"], image["height"])


def test_all_kinds_of_images_are_the_same_to_the_model(model: FinetunedModel, photos: Path) -> None:
    path = photos / "album" / "2.png"
    with Image.open(path) as opened:
        picture = opened.convert("RGB")
    array = np.asarray(picture)
    tensor = torch.from_numpy(array.copy()).permute(2, 0, 1)
    first, *others = model([str(path), path, picture, array, tensor])
    for other in others:
        assert torch.equal(first.boxes, other.boxes)
        assert torch.equal(first.masks, other.masks)
    # Alone it has another batch, in which sums are cut in another way.
    torch.testing.assert_close(model(picture).scores, first.scores, rtol=0, atol=1e-6)


def test_objects_below_the_score_are_left_out(
    runs: dict[str, Path], model: FinetunedModel, photos: Path, tmp_path: Path
) -> None:
    photo = photos / "0.png"
    least = sorted(model(photo).scores.tolist())[2]
    assert predict(runs["coco-fpn"], photo, "--score", str(least), out=tmp_path) == 0
    scores = [each["score"] for each in results(tmp_path)["annotations"]]
    assert len(scores) == len(model(photo)) - 2
    assert min(scores) == least


def test_where_nothing_is_found_a_lower_score_is_named(
    runs: dict[str, Path], photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert predict(runs["coco-fpn"], photos, "--score", "1", out=tmp_path / "a") == 0
    assert (
        "No object has a score of 1 or more. Give a lower one, such as" in capsys.readouterr().out
    )
    assert predict(runs["coco-fpn"], photos, "--score", "0", out=tmp_path / "b") == 0
    assert predict(runs["voc-semantic"], photos, out=tmp_path / "c") == 0
    assert "No object" not in capsys.readouterr().out


def test_results_in_the_formats_of_other_programs(
    runs: dict[str, Path], photos: Path, tmp_path: Path
) -> None:
    options = ["--score", "0", "--no-draw", "--format", "yolo", "csv", "masks", "coco"]
    assert predict(runs["coco-fpn"], photos / "album", *options, out=tmp_path) == 0
    assert not (tmp_path / "pictures").exists()
    objects = results(tmp_path)["annotations"]
    with (tmp_path / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["class"] for row in rows] == [CLASSES[each["category_id"] - 1] for each in objects]
    assert [float(row["x0"]) for row in rows] == pytest.approx(
        [each["bbox"][0] for each in objects], abs=0.01
    )
    lines = [line.split() for line in (tmp_path / "labels" / "2.txt").read_text().splitlines()]
    assert [int(line[0]) + 1 for line in lines] == [each["category_id"] for each in objects]
    assert all(0 <= float(value) <= 1 for line in lines for value in line[1:])
    assert (tmp_path / "classes.txt").read_text().split() == [*CLASSES]
    with Image.open(tmp_path / "masks" / "2.png") as picture:
        numbers = np.asarray(picture)
    assert numbers.shape == SIZES[2][::-1]
    masks = load_finetuned(runs["coco-fpn"])(photos / "album" / "2.png").masks.numpy()
    assert np.array_equal(numbers > 0, masks.any(axis=0))
    assert masks.any()


def test_a_segmenter_writes_a_class_for_every_pixel(
    runs: dict[str, Path], photos: Path, tmp_path: Path
) -> None:
    run = runs["voc-semantic"]
    assert predict(run, photos, "--batch", "3", out=tmp_path) == 0
    model = load_finetuned(run)
    for name in ("0", "album/2"):
        with Image.open(tmp_path / "masks" / f"{name}.png") as picture:
            assert np.array_equal(np.asarray(picture), model(photos / f"{name}.png").numpy())


def test_shards_and_keypoints(runs: dict[str, Path], photos: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "some.tar", "w") as shard:
        shard.add(photos / "0.png", "a/0.png")
    out = tmp_path / "out"
    options = ["--score", "0", "--format", "coco", "yolo"]
    assert predict(runs["coco-keypoints"], tmp_path / "some.tar", *options, out=out) == 0
    assert (out / "pictures" / "some" / "a" / "0.jpg").is_file()
    content = results(out)
    assert len(content["annotations"][0]["keypoints"]) == 9
    assert content["categories"][0]["keypoints"] == ["nose", "left_eye", "right_eye"]
    line = (out / "labels" / "some" / "a" / "0.txt").read_text().splitlines()[0]
    assert len(line.split()) == 1 + 4 + 9 + 1


def test_frames_of_a_video(runs: dict[str, Path], tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    video = tmp_path / "walk.avi"
    writer = cv2.VideoWriter(str(video), cv2.VideoWriter_fourcc(*"MJPG"), 10, (64, 48))
    for shade in (0, 60, 120, 180, 240):
        writer.write(np.full((48, 64, 3), shade, np.uint8))
    writer.release()
    out = tmp_path / "out"
    assert predict(runs["coco-fpn"], video, "--every", "2", out=out) == 0
    frames = [path.stem for path in sorted((out / "pictures" / "walk").iterdir())]
    assert frames == ["frame_000001", "frame_000003", "frame_000005"]
    with Image.open(out / "pictures" / "walk" / "frame_000005.jpg") as picture:
        assert np.median(np.asarray(picture)) == pytest.approx(240, abs=12)


@pytest.mark.parametrize(
    ("task", "given", "options", "words"),
    [
        ("coco-fpn", "nowhere", [], "does not exist. Name images"),
        ("coco-fpn", "broken.jpg", [], "The image cannot be read"),
        ("coco-fpn", "notes.txt", [], "neither an image nor a folder"),
        ("coco-fpn", "walk.mp4", [], "is no video that can be read"),
        ("coco-keypoints", "0.png", ["--format", "masks"], "needs a model that draws masks"),
        ("voc-semantic", "0.png", ["--format", "yolo"], "Take --format masks or csv"),
    ],
)
def test_mistakes_are_told(
    task: str,
    given: str,
    options: list[str],
    words: str,
    runs: dict[str, Path],
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("notes.txt", "walk.mp4"):
        (tmp_path / name).write_text("nothing")
    place = photos / given if (photos / given).exists() else tmp_path / given
    if given == "walk.mp4":
        pytest.importorskip("cv2")
    assert predict(runs[task], place, *options, out=tmp_path / "out") == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_a_folder_with_other_things_is_not_written_to(
    runs: dict[str, Path], photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert predict(runs["coco-fpn"], photos, out=photos) == 2
    assert "is not empty" in capsys.readouterr().err


def test_every_image_has_a_place_of_its_own_however_files_are_called(tmp_path: Path) -> None:
    for name in ("x.png", "x.jpg/y.png", "a" * 251 + ".png", "a" * 251 + ".jpg", "..png", "X.bmp"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (2, 2)).save(tmp_path / name, format="PNG")
    places = [image.place for image in Inputs([tmp_path])]
    for place in places:
        for suffix in (".jpg", ".png", ".txt"):
            path = tmp_path / "out" / f"{place}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb"):
                pass
    assert sorted(places)[:2] == [".", "X"]
    assert {"x-2", "x.jpg_/y"} < set(places)


def test_pictures_lie_in_their_folder_however_files_are_called(
    runs: dict[str, Path], photos: Path, tmp_path: Path
) -> None:
    odd = tmp_path / "given"
    odd.mkdir()
    shutil.copy(photos / "0.png", odd / "..png")
    out = tmp_path / "out"
    assert predict(runs["coco-fpn"], odd, out=out) == 0
    assert [path.name for path in (out / "pictures").iterdir()] == ["..jpg"]


def test_a_video_with_more_frames_than_it_says_has_no_time_left() -> None:
    assert "2 of 5 images" in Tally(5, images=2).line()
    line = Tally(5, images=7).line()
    assert line.startswith("7 images, ")
    assert "left" not in line


def test_photos_of_a_phone_are_named_with_what_to_type(tmp_path: Path) -> None:
    (tmp_path / "a.HEIC").write_bytes(b"")
    with pytest.raises(UserError, match=r"1 \.heic file of .* cannot.*mogrify -format jpg"):
        Inputs([tmp_path])
    with pytest.raises(UserError, match=r"\.heic files such as .*mogrify -format jpg"):
        Inputs([tmp_path / "a.HEIC"])
    Image.new("RGB", (2, 2)).save(tmp_path / "a.png")
    assert ["1 .heic file" in line for line in Inputs([tmp_path]).warnings()] == [True]


def test_a_folder_without_images_says_what_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing to see")
    with pytest.raises(UserError, match=r"no images \(1 other file\).*name another folder"):
        Inputs([tmp_path])
    (tmp_path / "shard.tar").write_bytes(b"")
    with pytest.raises(UserError, match=r"1 tar file but.*name the files: .*\*\.tar"):
        Inputs([tmp_path])


def test_an_image_in_a_folder_that_is_called_like_a_shard_is_an_image(tmp_path: Path) -> None:
    folder = tmp_path / "photos.tar.unpacked"
    folder.mkdir()
    Image.new("RGB", (2, 2)).save(folder / "a.png")
    assert [image.place for image in Inputs([folder / "a.png"])] == ["a"]


def test_a_file_in_the_place_of_the_results_is_said_to_be_one(tmp_path: Path) -> None:
    file = tmp_path / "drawn"
    file.touch()
    with pytest.raises(UserError, match=r"drawn is a file\. Give a new folder"):
        check_is_empty(file)
