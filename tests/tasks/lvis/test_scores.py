"""Rules of LVIS's scores, one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clove_ssl.errors import UserError
from clove_ssl.tasks.labels.rle import encode_mask, write_counts
from clove_ssl.tasks.labels.samples import Annotation, Sample
from clove_ssl.tasks.lvis.reader import KnownClasses, LVISDataset
from clove_ssl.tasks.lvis.scores import LIMIT, score_lvis
from clove_ssl.tasks.predictions import Predictions
from clove_ssl.tasks.scoring.judging import score_predictions

NOBODY: frozenset[int] = frozenset()


def image(number: int, *categories: int) -> Sample:
    """An image with an object of each class, of 20 x 20 pixels, side by side."""
    things = tuple(
        Annotation(
            (30.0 * n, 0.0, 30.0 * n + 20, 20.0), category, 400.0, identifier=10 * number + n
        )
        for n, category in enumerate(categories)
    )
    return Sample(Path(f"{number}.jpg"), number, 300, 100, things)


def dataset(*samples: Sample, **given: Any) -> LVISDataset:
    """Three classes, of which 0 is rare, with what is known about image 1, 2, ..."""
    known = {
        f"image_{sample.identifier}": KnownClasses(NOBODY, NOBODY) for sample in samples
    } | given
    return LVISDataset(
        samples,
        ("axe", "bird", "cup"),
        (5, 6, 9),
        frequencies=("r", "c", "f"),
        known={sample.identifier: known[f"image_{sample.identifier}"] for sample in samples},
    )


def found(number: int, category: int, score: float, *, place: int = 0) -> dict[str, Any]:
    return {
        "image_id": number,
        "category_id": (5, 6, 9)[category],
        "score": score,
        "bbox": [30.0 * place, 0.0, 20.0, 20.0],
    }


def average(truth: LVISDataset, records: list[dict[str, Any]]) -> float:
    return score_lvis(truth, records, kind="box").summary()["AP"]


def test_a_class_that_nobody_looked_for_is_no_mistake() -> None:
    stray = [found(1, 0, 0.9), found(2, 0, 0.8)]
    unknown = dataset(image(1, 1), image(2, 0))
    assert average(unknown, [*stray, found(1, 1, 0.5)]) == pytest.approx(1)
    absent = dataset(image(1, 1), image(2, 0), image_1=KnownClasses(frozenset({0}), NOBODY))
    assert average(absent, [*stray, found(1, 1, 0.5)]) == pytest.approx(0.75)


def test_a_stray_detection_is_no_mistake_where_a_class_is_incomplete() -> None:
    records = [found(1, 0, 0.9, place=3), found(1, 0, 0.8)]
    assert average(dataset(image(1, 0)), records) == pytest.approx(0.5)
    incomplete = dataset(image(1, 0), image_1=KnownClasses(NOBODY, frozenset({0})))
    assert average(incomplete, records) == pytest.approx(1)


def test_only_the_best_detections_of_an_image_count() -> None:
    strays = [found(1, 1, 0.9, place=5) for _ in range(LIMIT - 1)]
    assert average(dataset(image(1, 0)), [*strays, found(1, 0, 0.5)]) == pytest.approx(1)
    assert average(dataset(image(1, 0)), [*strays, strays[0], found(1, 0, 0.5)]) == 0


def test_scores_of_frequencies_are_those_of_their_classes() -> None:
    summary = score_lvis(
        dataset(image(1, 0, 1)), [found(1, 0, 0.9), found(1, 1, 0.9, place=4)], kind="box"
    ).summary()
    assert summary["APr"] == pytest.approx(1)
    assert summary["APc"] == 0
    assert np.isnan(summary["APf"])
    assert summary["AP"] == pytest.approx(0.5)
    names = "AP AP50 AP75 APs APm APl APr APc APf AR300 ARs ARm ARl"
    assert " ".join(summary) == names


def test_no_predictions_score_zero() -> None:
    scores = score_lvis(dataset(image(1, 0)), [], kind="box")
    assert scores.summary()["AP"] == 0
    assert scores.summary()["AR300"] == 0
    assert score_lvis(dataset(image(1)), [], kind="box").frequencies == ("r", "c", "f")


def test_the_table_has_the_classes_of_the_test_and_curves_by_frequency() -> None:
    truth = dataset(image(1, 0, 1))
    scores = score_predictions(("box",), truth, Predictions([found(1, 0, 0.9)]))
    (table,) = scores.tables
    assert list(table.by_class) == ["axe", "bird"]
    assert table.by_class["axe"]["objects"] == 1
    assert set(table.curves) == {"rare", "common"}
    assert table.curves["rare"].precision == pytest.approx([1.0] * 101)


def test_objects_without_a_mask_are_named() -> None:
    pytest.importorskip("faster_coco_eval")
    mask = np.zeros((100, 300), bool)
    mask[:20, :20] = True
    runs = {"size": [100, 300], "counts": write_counts(encode_mask(mask).counts)}
    records = [found(1, 0, 0.9) | {"segmentation": runs}]
    with pytest.raises(UserError, match=r"Annotation 10 of 1\.jpg has no mask"):
        score_lvis(dataset(image(1, 0)), records, kind="mask")


@pytest.mark.parametrize("kind", ["box", "mask"])
def test_predictions_of_unknown_classes_are_refused(kind: Any) -> None:
    record = found(1, 0, 0.9) | {"category_id": 7, "segmentation": {}}
    with pytest.raises(UserError, match="category_id 7"):
        score_predictions((kind,), dataset(image(1, 0)), Predictions([record]))
