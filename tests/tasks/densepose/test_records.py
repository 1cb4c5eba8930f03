"""Records of found persons, from predictions to scores and pictures."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from builders.files.surface_files import write_surface_files
from builders.tasks.tiny_densepose import scenes
from PIL import Image

from clove_ssl.config.finetuning import LabelledDataConfig
from clove_ssl.data.scenes import SceneSource
from clove_ssl.errors import UserError
from clove_ssl.painting.predictions import (
    SurfaceMap,
    paint_colour_map,
    paint_contours,
    paint_points,
)
from clove_ssl.tasks.densepose.config import COCODensePoseConfig
from clove_ssl.tasks.densepose.reader import DensePoseDataset, labels_of
from clove_ssl.tasks.densepose.records import (
    decode_surface,
    encode_surface,
    image_persons,
    paint_surfaces,
)
from clove_ssl.tasks.densepose.scores import score_densepose
from clove_ssl.tasks.densepose.surface_files import MeshSurface
from clove_ssl.tasks.densepose.surfaces import FigureSurface
from clove_ssl.tasks.densepose.task import DensePoseTask
from clove_ssl.tasks.predictions import Record, write_detections

SIZE, COUNT = 96, 8


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> DensePoseDataset:
    return scenes(tmp_path_factory.mktemp("scenes"), count=COUNT, size=SIZE)


def perfect_records(dataset: DensePoseDataset) -> list[Record]:
    """What somebody would predict who sees the figures themselves."""
    source, records = SceneSource(COUNT, SIZE), []
    for index, sample in enumerate(dataset.samples):
        scene = source.scene(index)
        maps = np.concatenate([scene.parts[None], np.rint(255 * scene.surface.transpose(2, 0, 1))])
        for person in sample.annotations:
            x0, y0, x1, y1 = (int(edge) for edge in person.box)
            window = np.clip(maps[:, y0:y1, x0:x1], 0, 255).astype(np.uint8)
            own = next(t.mask for t in scene.objects if t.box == person.box)
            window[:, ~own[y0:y1, x0:x1]] = 0
            records.append(
                {
                    "image_id": sample.identifier,
                    "category_id": 1,
                    "bbox": [x0, y0, x1 - x0, y1 - y0],
                    "score": 0.9,
                    "iuv": encode_surface(torch.from_numpy(window)),
                }
            )
    return records


def scored(dataset: DensePoseDataset, records: list[Record]) -> dict[str, float]:
    persons = image_persons(dataset, records)
    kinds = ("gpsm", "gps", "segm")
    found = score_densepose(persons, kinds=kinds, surface=dataset.surface)
    return {kind: scores.summary()["AP"] for kind, scores in found.items()}


def test_seeing_the_figures_themselves_gives_full_marks(dataset: DensePoseDataset) -> None:
    scores = scored(dataset, perfect_records(dataset))
    assert min(scores.values()) > 0.95


def test_a_wrong_surface_costs_points_but_not_masks(dataset: DensePoseDataset) -> None:
    records = perfect_records(dataset)
    for number, record in enumerate(records):
        surface = decode_surface(record, number).copy()
        surface[1:] = 255 - surface[1:]
        record["iuv"] = encode_surface(torch.from_numpy(surface))
    scores = scored(dataset, records)
    assert scores["gps"] < 0.2
    assert scores["segm"] > 0.95


def test_surfaces_come_back_as_they_were() -> None:
    surface = torch.randint(25, (3, 7, 5), dtype=torch.uint8)
    record = {"bbox": [1.5, 2.0, 5.9, 7.2], "iuv": encode_surface(surface)}
    np.testing.assert_array_equal(decode_surface(record, 0), surface.numpy())


def grey_png() -> str:
    file = BytesIO()
    Image.new("L", (5, 7)).save(file, format="PNG")
    return base64.b64encode(file.getvalue()).decode()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"iuv": None}, "Prediction 3 has no readable iuv"),
        ({"iuv": "no base64!"}, "Prediction 3 has no readable iuv"),
        ({"iuv": "\u00e9\u00e9\u00e9\u00e9"}, "Prediction 3 has no readable iuv"),
        ({"iuv": grey_png()[:60]}, "Prediction 3 has no readable iuv"),
        ({"iuv": base64.b64encode(b"no picture").decode()}, "Prediction 3 has no readable iuv"),
        ({"iuv": grey_png()}, r"an iuv of \(7, 5\); expected \(7, 5, 3\)"),
        ({"iuv": encode_surface(torch.full((3, 7, 5), 25, dtype=torch.uint8))}, "has part 25"),
        ({"bbox": [0, 0, 6, 7]}, r"an iuv of \(7, 5, 3\); expected \(7, 6, 3\)"),
    ],
)
def test_surfaces_that_cannot_be_read_are_named(change: dict, message: str) -> None:
    surface = torch.zeros(3, 7, 5, dtype=torch.uint8)
    record = {"bbox": [0, 0, 5, 7], "iuv": encode_surface(surface)} | change
    with pytest.raises(UserError, match=message):
        decode_surface(record, 3)


def test_the_task_scores_files_of_records(dataset: DensePoseDataset, tmp_path: Path) -> None:
    task = DensePoseTask(COCODensePoseConfig())
    path = tmp_path / "detections.json"
    write_detections(path, perfect_records(dataset), samples=dataset.samples, header={})
    scores = task.score(tmp_path, dataset).by_name()
    assert next(iter(scores)) == "gpsm_AP"
    for name in ("gpsm_AP", "gps_AP50", "segm_AP75", "box_AP"):
        assert scores[name] > 0.9
    masks_only = DensePoseTask(COCODensePoseConfig(scores=("segm",)))
    without_surface = replace(dataset, surface=None)
    tables = masks_only.score(tmp_path, without_surface).tables
    assert [table.name for table in tables] == ["segm", "box"]


def test_records_without_a_surface_are_refused(dataset: DensePoseDataset, tmp_path: Path) -> None:
    records = [{k: v for k, v in r.items() if k != "iuv"} for r in perfect_records(dataset)]
    write_detections(tmp_path / "detections.json", records, samples=dataset.samples, header={})
    with pytest.raises(UserError, match="Prediction 0 has no readable iuv"):
        DensePoseTask(COCODensePoseConfig()).score(tmp_path, dataset)


def as_user_data(dataset: DensePoseDataset) -> LabelledDataConfig:
    """The scenes as if they were a user's files."""
    images = dataset.samples[0].image.parent
    labels = images.parents[1] / "annotations/densepose_train.json"
    return LabelledDataConfig(
        train_annotations=labels, train_images=images, test_annotations=labels, test_images=images
    )


def test_data_of_a_user_need_a_surface_unless_masks_are_enough(
    dataset: DensePoseDataset, tmp_path: Path
) -> None:
    data = as_user_data(dataset)
    for config in (COCODensePoseConfig(), COCODensePoseConfig(mirror=False)):
        with pytest.raises(UserError, match="--task.surface FOLDER"):
            DensePoseTask(config).read(data)
    plain = DensePoseTask(COCODensePoseConfig(mirror=False, scores=("segm",))).read(data)
    assert plain.train.mirror is None
    write_surface_files(tmp_path)
    full = DensePoseTask(COCODensePoseConfig(surface=tmp_path)).read(data)
    assert full.train.mirror is not None
    assert isinstance(full.test.surface, MeshSurface)


def test_files_without_labels_are_refused(dataset: DensePoseDataset, tmp_path: Path) -> None:
    data = as_user_data(dataset)
    content = json.loads(data.train_annotations.read_text())
    content["annotations"] = [
        {name: value for name, value in entry.items() if not name.startswith("dp_")}
        for entry in content["annotations"]
    ]
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(content))
    task = DensePoseTask(COCODensePoseConfig(mirror=False, scores=("segm",)))
    with pytest.raises(UserError, match="None of the 8 test images has a person with DensePose"):
        task.read(replace(data, test_annotations=bare))
    with pytest.raises(UserError, match="None of the 8 training images"):
        task.read(replace(data, train_annotations=bare))


def test_lists_of_images_are_refused(dataset: DensePoseDataset) -> None:
    data = replace(as_user_data(dataset), train_lists=("2007:trainval",))
    config = COCODensePoseConfig(mirror=False, scores=("segm",))
    with pytest.raises(UserError, match="has no lists"):
        DensePoseTask(config).read(data)


@pytest.mark.parametrize("scores", [(), ("gps", "gps")])
def test_scores_are_named_once(scores: tuple) -> None:
    with pytest.raises(UserError, match="each once"):
        COCODensePoseConfig(scores=scores)


def test_pictures_show_points_colours_and_lines(dataset: DensePoseDataset, tmp_path: Path) -> None:
    records = perfect_records(dataset)
    (sheet,) = paint_surfaces(dataset, records, tmp_path, count=3)
    with Image.open(sheet) as picture:
        assert picture.width > 3 * 480
        colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 24)}
    assert {(255, 140, 0), (0, 210, 255), (255, 255, 255)} <= colours


def test_a_surface_is_coloured_by_part_u_and_v_where_it_is_on_the_body() -> None:
    image = np.full((60, 480, 3), 100, np.uint8)
    iuv = np.zeros((3, 10, 20), np.uint8)
    iuv[:, :, 10:] = np.array([24, 255, 0])[:, None, None]
    shown = np.asarray(paint_colour_map(image, [SurfaceMap(5, 3, iuv)], caption=""))[-60:]
    assert shown[8, 20].tolist() == [216, 25, 216]
    assert shown[8, 10].tolist() == [100, 100, 100]
    assert shown[20, 20].tolist() == [100, 100, 100]


def test_lines_run_where_u_or_v_reaches_the_next_step() -> None:
    image = np.zeros((64, 480, 3), np.uint8)
    iuv = np.ones((3, 64, 256), np.uint8)
    iuv[1] = np.arange(256)
    iuv[2] = 4 * np.arange(64)[:, None]
    shown = np.asarray(paint_contours(image, [SurfaceMap(0, 0, iuv)], caption=""))[-64:]
    orange = (shown == (255, 140, 0)).all(-1)
    blue = (shown == (0, 210, 255)).all(-1)
    assert np.flatnonzero(orange[3]).tolist() == list(range(31, 255, 32))
    assert np.flatnonzero(blue[:, 3]).tolist() == list(range(7, 63, 8))


def test_surfaces_that_leave_the_image_are_cut() -> None:
    image = np.zeros((40, 480, 3), np.uint8)
    iuv = np.full((3, 30, 30), 10, np.uint8)
    edges = [SurfaceMap(-20, -20, iuv), SurfaceMap(470, 30, iuv), SurfaceMap(600, 600, iuv)]
    edges += [SurfaceMap(485, 3, iuv), SurfaceMap(3, 45, iuv)]  # beyond it by less than their size
    shown = np.asarray(paint_colour_map(image, edges, caption=""))[-40:]
    assert (shown.any(-1)).sum() == 200


def test_points_have_the_colours_of_their_parts() -> None:
    image = np.zeros((40, 480, 3), np.uint8)
    points, parts = np.array([[30.0, 20.0], [400.0, 20.0]]), np.array([1, 2])
    shown = np.asarray(paint_points(image, points, parts, caption=""))[-40:]
    assert shown[20, 30].any()
    assert shown[20, 400].any()
    assert (shown[20, 30] != shown[20, 400]).any()


def test_the_scenes_of_the_task_are_measured_by_formulas(tmp_path: Path) -> None:
    task = DensePoseTask(COCODensePoseConfig())
    config = LabelledDataConfig(scenes_train=3, scenes_test=3, scenes_size=64)
    task.write_scenes(config, tmp_path)
    data = task.read_scenes(tmp_path)
    assert isinstance(data.test.surface, FigureSurface)
    assert data.train_images == len(data.train.samples)
    for sample in data.train.samples:
        assert any(labels_of(person) is not None for person in sample.annotations)
    still = DensePoseTask(COCODensePoseConfig(mirror=False)).read_scenes(tmp_path)
    assert still.train.mirror is None
