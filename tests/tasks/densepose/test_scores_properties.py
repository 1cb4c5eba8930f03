"""DensePose scores against the slow reference, on random persons and detections."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from references.tasks import densepose_scores as slow

from clove_ssl.tasks.densepose.scores import SIZES, THRESHOLDS, ImagePersons, Kind, score_densepose
from clove_ssl.tasks.densepose.similarity import FoundPerson, LabelledPerson, whole_mask
from clove_ssl.tasks.densepose.surface_files import MeshSurface
from clove_ssl.tasks.densepose.surfaces import FigureSurface, Places, Surface

SIZE = (60, 70)
KINDS: tuple[Kind, ...] = ("gpsm", "gps", "segm")


@dataclass(frozen=True)
class Case:
    """The same images for both programs."""

    fast: list[ImagePersons]
    slow: list


def draw_case(seed: int) -> Case:
    draws = np.random.default_rng(seed)
    images = [draw_image(draws) for _ in range(int(draws.integers(1, 4)))]
    return Case([fast_image(*each) for each in images], [(SIZE, *each) for each in images])


def draw_image(draws: np.random.Generator) -> tuple[list, list]:
    persons = [paint_person(draws) for _ in range(int(draws.integers(0, 4)))]
    detections = []
    for person in persons:
        for _ in range(int(draws.integers(0, 3))):
            detections.append(draw_detection(draws, person))
    return persons, detections


def paint_person(draws: np.random.Generator) -> tuple:
    box = (*draws.uniform(0, 25, 2).tolist(), *draws.uniform(15, 40, 2).tolist())
    count = int(draws.integers(1, 12))
    points = [
        (*draws.uniform(0, 255, 2).tolist(), int(draws.integers(1, 5)), *draws.random(2).tolist())
        for _ in range(count)
    ]
    mask = np.zeros(SIZE, bool)
    mask[int(box[1]) : int(box[1] + box[3]), int(box[0]) : int(box[0] + box[2])] = True
    mask &= draws.random(SIZE) < 0.9
    labelled = draws.random() < 0.7
    return box, float(mask.sum()), points if labelled else None, mask


def draw_detection(draws: np.random.Generator, person: tuple) -> tuple:
    """A person's box, moved a little, with mostly the right surface."""
    spread = draws.choice([0.3, 3.0])
    box = np.array(person[0]) + draws.normal(0, spread, 4)
    box[:2] = np.clip(box[:2], 0, None)
    height, width = int(box[3]), int(box[2])
    iuv = np.zeros((3, height, width), np.uint8)
    iuv[0] = draws.integers(1, 5)
    iuv[1:] = draws.integers(0, 256, (2, 1, 1))
    x, y, w, h = person[0]
    for px, py, part, u, v in person[2] or ():
        column, row = int(px * w / 255 + x - box[0]), int(py * h / 255 + y - box[1])
        if 0 <= column < width and 0 <= row < height and draws.random() < 0.8:
            iuv[:, row, column] = part, round(u * 255), round(v * 255)
    iuv[0] *= draws.random((height, width)) < 0.9
    score = float(np.round(draws.random(), 1))  # rounded, so that there are ties
    return tuple(box.tolist()), score, iuv


def fast_image(persons: list, detections: list) -> ImagePersons:
    return ImagePersons(
        SIZE,
        tuple(
            LabelledPerson(
                box,
                area,
                points=None if points is None else np.array(points)[:, :2],
                places=None
                if points is None
                else Places(np.array([p[2] for p in points]), np.array(points)[:, 3:]),
                mask=whole_mask(mask),
            )
            for box, area, points, mask in persons
        ),
        tuple(FoundPerson(*each) for each in detections),
    )


def small_mesh(seed: int) -> tuple[MeshSurface, slow.Distance]:
    """A mesh of ten vertices per part with any distances, and its slow twin."""
    draws = np.random.default_rng(seed)
    parts = np.repeat(np.arange(1, 25), 10)
    surface = draws.random((240, 2))
    rows = draws.permutation(240)
    table = np.abs(draws.normal(0, 0.1, (240, 240)))
    table = np.tril(table, -1) + np.tril(table, -1).T
    pairs = table[np.tril_indices(240, -1)]

    def vertex(place: tuple[int, float, float]) -> int:
        part, u, v = place
        return min(range((part - 1) * 10, part * 10), key=lambda n: math.dist(surface[n], (u, v)))

    def distance(a: tuple[int, float, float], b: tuple[int, float, float]) -> float:
        return float(table[rows[vertex(a)], rows[vertex(b)]])

    return MeshSurface(parts, surface, rows, load_pairs=lambda: pairs), distance


def figure_distance(a: tuple[int, float, float], b: tuple[int, float, float]) -> float:
    """Parts of a figure are rolled-up rectangles: here the four that are used, in metres."""
    sides = {1: TORSO, 2: TORSO, 3: HAND, 4: HAND}
    if a[0] != b[0]:
        return math.inf
    along, around = sides[a[0]]
    return math.hypot((a[1] - b[1]) * along, (a[2] - b[2]) * around)


TORSO = (1.7 * (0.22 + 0.100 + 0.080), 1.7 * math.pi * 0.090)
HAND = (1.7 * (0.035 + 0.024 + 0.022), 1.7 * math.pi * 0.023)


def assert_equal(case: Case, surface: Surface, distance: slow.Distance) -> None:
    found = score_densepose(case.fast, kinds=KINDS, surface=surface)
    for kind in KINDS:
        for name, limits in SIZES.items():
            expected = slow.average_precision(kind, case.slow, distance, THRESHOLDS, limits)
            area = found[kind].sizes.index(name)
            mine = found[kind].precision[:, :, 0, area, 0].mean(axis=1)
            np.testing.assert_allclose(mine, expected, rtol=0, atol=1e-9)


@settings(max_examples=150)
@given(seed=st.integers(0, 2**32 - 1))
def test_scores_on_figures_equal_the_definition(seed: int) -> None:
    assert_equal(draw_case(seed), FigureSurface(), figure_distance)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1))
def test_scores_on_a_mesh_equal_the_definition(seed: int) -> None:
    assert_equal(draw_case(seed), *small_mesh(seed))


def test_cases_have_right_and_wrong_detections_of_every_kind() -> None:
    """The other tests would show little if all scores were 0 or 1."""
    figures = [
        score_densepose(draw_case(seed).fast, kinds=KINDS, surface=FigureSurface())
        for seed in range(30)
    ]
    for kind in KINDS:
        values = [each[kind].summary()["AP"] for each in figures]
        between = [value for value in values if 0.05 < value < 0.95]
        assert len(between) >= 5, kind


@pytest.mark.parametrize(("others", "found"), [(19, True), (20, False)])
def test_only_the_twenty_best_detections_count(others: int, found: bool) -> None:
    box = (5.0, 5.0, 20.0, 30.0)
    mask = np.zeros(SIZE, bool)
    mask[5:35, 5:25] = True
    person = (box, float(mask.sum()), [(9.0, 9.0, 1, 0.5, 0.5)], mask)
    everywhere = np.ones((3, 30, 20), np.uint8)
    elsewhere = ((40.0, 5.0, 20.0, 30.0), 0.9, everywhere)
    image = fast_image([person], [*[elsewhere] * others, (box, 0.1, everywhere)])
    recall = score_densepose([image], kinds=("segm",), surface=None)["segm"].recall
    assert (recall[0, 0, 0, 0] == 1) == found


def test_points_cannot_be_scored_without_a_surface() -> None:
    with pytest.raises(ValueError, match="surface"):
        score_densepose([], kinds=("gps",), surface=None)
