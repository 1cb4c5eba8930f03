"""Tables, sentences and curves of scores by the number of labels."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import pytest

from clove_ssl.label_curves.page import paint_curve
from clove_ssl.label_curves.results import LabelCurve, LabelLine, LabelPoint
from clove_ssl.report.series import HEIGHT, WIDTH

SVG = "{http://www.w3.org/2000/svg}"


def line(name: str, *scores: float | tuple[float, ...]) -> LabelLine:
    values = [each if isinstance(each, tuple) else (each,) for each in scores]
    images = (10, 100, 1000)
    return LabelLine(name, tuple(map(LabelPoint, images, values)))


def curve(*lines: LabelLine) -> LabelCurve:
    return LabelCurve("box_AP", lines, "random")


def test_the_verdict_names_the_largest_saving_of_labels() -> None:
    told = curve(line("random", 0.01, 0.1, 0.3), line("mine", 0.05, 0.31, 0.4)).verdict()
    assert told[0] == (
        "With 100 labelled images mine reaches box_AP 31.0; random needs 1,000 for 30.0: 10 times "
        "as many labels."
    )
    assert told[1].endswith("+4.0 with 10, +21.0 with 100, +10.0 with 1,000.")
    assert "--runs 3" in told[2]


def test_the_verdict_does_not_promise_what_was_not_seen() -> None:
    worse = curve(line("random", 0.2, 0.3, 0.4), line("mine", 0.1, 0.2, 0.3)).verdict()
    assert "mine never does as well as random" in worse[0]
    nothing = curve(line("random", 0.0, 0.0, 0.0), line("mine", 0.0, 0.0, 0.0)).verdict()
    assert "mine never does as well as random" in nothing[0], "no object found equals nothing"
    assert curve(line("random", 0.1, (), ()), line("mine", (), (), ())).verdict() == []
    one_part = curve(line("random", 0.1, (), ()), line("mine", 0.2, (), ())).verdict()
    assert "never does as well" not in " ".join(one_part), "there is no larger one"


def test_several_seeds_have_a_spread() -> None:
    point = LabelPoint(10, (0.1, 0.3))
    assert point.shown() == "20.0 ± 14.1"
    assert LabelPoint(10, (0.1,)).shown() == "10.0"
    assert LabelPoint(10, ()).shown() == "–"
    told = curve(line("random", (0.1, 0.2), (), ()), line("mine", (0.2, 0.3), (), ())).verdict()
    assert "luck" not in " ".join(told)


def test_curves_are_a_picture_that_stands_alone() -> None:
    found = curve(line("random & co", (0.1, 0.2), 0.1, 0.3), line("mine <1>", (), 0.31, 0.4))
    picture = paint_curve(found, title='box_AP of "a" & b')
    root = ET.fromstring(str(picture))
    assert root.tag == f"{SVG}svg"
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert {"random & co", "mine <1>", "10", "100", "1,000"} <= set(texts)
    runs = [each for each in root.iter(f"{SVG}circle") if each.get("class") == "run"]
    assert len(runs) == 2
    for circle in root.iter(f"{SVG}circle"):
        assert 0 <= float(circle.get("cx", "nan")) <= WIDTH
        assert 0 <= float(circle.get("cy", "nan")) <= HEIGHT + 40


def places(found: LabelCurve) -> list[float]:
    root = ET.fromstring(str(paint_curve(found, title="")))
    drawn = [element for element in root.iter(f"{SVG}circle") if element.get("class") == "point"]
    return [float(element.get("cx", "nan")) for element in drawn]


def test_images_stand_on_a_logarithmic_axis() -> None:
    first, second, third, _ = places(curve(line("random", 0.1, 0.2, 0.3)))
    assert second - first == pytest.approx(third - second, abs=0.2)


def test_a_single_point_and_no_point_at_all_can_be_drawn() -> None:
    assert all(map(math.isfinite, places(curve(line("random", 0.0, (), ())))))
    assert paint_curve(curve(line("random", (), (), ())), title="") is None
