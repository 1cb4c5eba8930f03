"""DensePose scores against the evaluator of Detectron2's DensePose project, on a synthetic mesh."""

from __future__ import annotations

import numpy as np
import pytest

from clove_ssl.tasks.densepose.scores import ImagePersons, Kind, match, score_densepose, similarity
from clove_ssl.tasks.densepose.similarity import (
    FoundPerson,
    LabelledPerson,
    Similarities,
    compare,
    mask_in_box,
    point_closeness,
    whole_mask,
)
from clove_ssl.tasks.densepose.surface_files import MeshSurface
from clove_ssl.tasks.densepose.surfaces import KAPPA, Places
from clove_ssl.tasks.labels.polygons import fill_polygons

pytestmark = pytest.mark.golden

NAMES: dict[Kind, str] = {"gps": "gps", "gpsm": "gpsm", "segm": "iou"}
FIGURES = ("AP", "AP50", "AP75", "APm", "APl", "AR", "AR50", "AR75", "ARm", "ARl")


@pytest.fixture(scope="module")
def recorded(recorded_file) -> dict[str, np.ndarray]:
    return recorded_file("detectron2/13_densepose_gps.npz")


@pytest.fixture(scope="module")
def surface(recorded) -> MeshSurface:
    return MeshSurface(
        recorded["part_id"],
        recorded["uv"].T,
        recorded["pdist_transform"] - 1,
        load_pairs=lambda: recorded["pdist_lower_triangle"],
    )


@pytest.fixture(scope="module")
def images(recorded) -> dict[int, ImagePersons]:
    size = tuple(recorded["image_hw"].tolist())
    truth, found = recorded["gt_id_img_xywh_hasdp_area"], recorded["dt_id_img_xywh_score"]
    return {
        int(image): ImagePersons(
            size,
            tuple(person(recorded, row, size) for row in truth if row[1] == image),
            tuple(
                FoundPerson(tuple(row[2:6].tolist()), row[6], recorded[f"dt{int(row[0])}_iuv"])
                for row in found
                if row[1] == image
            ),
        )
        for image in np.unique(truth[:, 1])
    }


def person(recorded, row: np.ndarray, size: tuple[int, int]) -> LabelledPerson:
    box = tuple(row[2:6].tolist())
    if not row[6]:
        return LabelledPerson(box, row[7], mask=whole_mask(filled_box(box, size)))
    points = recorded["gt_points_id_x_y_I_U_V"]
    own = points[points[:, 0] == row[0]]
    bits = np.unpackbits(recorded[f"gt{int(row[0])}_segm256_packed"]).reshape(256, 256) > 0
    return LabelledPerson(
        box,
        row[7],
        points=own[:, 1:3],
        places=Places(own[:, 3].astype(np.int64), own[:, 4:]),
        mask=mask_in_box(bits, box, size),
    )


def filled_box(box: tuple[float, ...], size: tuple[int, int]) -> np.ndarray:
    """The polygon of a box, rasterised as COCO does."""
    x, y, width, height = box
    corners = np.array([x, y, x + width, y, x + width, y + height, x, y + height])
    return fill_polygons([corners], height=size[0], width=size[1])


def by_score(image: ImagePersons) -> list[FoundPerson]:
    return sorted(image.found, key=lambda each: -each.score)


@pytest.fixture(scope="module")
def pairs(images, surface) -> dict[int, Similarities]:
    return {
        number: compare(by_score(image), image.truth, image_size=image.size, surface=surface)
        for number, image in images.items()
    }


@pytest.mark.parametrize(
    ("mine", "theirs"), [("points", "gps"), ("boxes", "box_iou"), ("masks", "mask_iou")]
)
def test_similarities_are_the_recorded_ones(recorded, pairs, mine: str, theirs: str) -> None:
    for number, similar in pairs.items():
        np.testing.assert_allclose(
            getattr(similar, mine), recorded[f"img{number}_{theirs}"], rtol=0, atol=1e-6
        )


@pytest.mark.parametrize("kind", list(NAMES))
def test_matches_are_the_recorded_ones(recorded, images, pairs, kind: Kind) -> None:
    truth = recorded["gt_id_img_xywh_hasdp_area"]
    for number, image in images.items():
        similar = pairs[number]
        ignored = np.array([each.points is None for each in image.truth])
        nobody = np.zeros(len(ignored), bool)
        found = match(similarity(similar, kind), similar.boxes, ignored=ignored, crowds=nobody)
        identifiers = np.append(truth[truth[:, 1] == number, 0], 0)
        prefix = f"{NAMES[kind]}_img{number}"
        np.testing.assert_array_equal(identifiers[found.matched], recorded[f"{prefix}_dtMatches"])
        np.testing.assert_array_equal(found.ignored, recorded[f"{prefix}_dtIgnore"])


@pytest.mark.parametrize("kind", list(NAMES))
def test_summaries_are_the_recorded_ones(recorded, images, surface, kind: Kind) -> None:
    scores = score_densepose(images.values(), kinds=[kind], surface=surface)[kind].summary()
    expected = dict(zip(FIGURES, recorded[f"{NAMES[kind]}_stats18"].tolist(), strict=True))
    assert scores == pytest.approx(expected, abs=1e-6)


def test_a_point_is_as_close_as_recorded(recorded) -> None:
    kappa = np.unique(KAPPA[1:], return_index=True)[1]
    assert set(recorded["formula_kappa"].tolist()) == set(KAPPA[1:][kappa].tolist())
    terms = point_closeness(recorded["formula_dist"][None], recorded["formula_kappa"][:, None])
    np.testing.assert_allclose(terms, recorded["formula_gps_term"], rtol=0, atol=1e-6)
