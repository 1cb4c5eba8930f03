"""Tables of scores over GPU seconds say what the runs behind them have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.draw_budgets import TITLES, Run, draw, table_of

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/results/2026-11-17-h200-clove-plus-budgets.jsonl"


def measured() -> list[Run]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()]


@pytest.mark.parametrize("page", ["README.md", "docs/results/clove-plus.md"])
def test_the_pages_have_the_table_of_the_runs(page: str) -> None:
    assert "\n".join(table_of(measured())) in (ROOT / page).read_text()


def test_the_curves_in_the_docs_are_those_of_the_runs(tmp_path: Path) -> None:
    draw(measured(), tmp_path)
    drawn = sorted(tmp_path.iterdir())
    assert len(drawn) == len(TITLES)
    for picture in drawn:
        assert picture.read_text() == (ROOT / "docs/images" / picture.name).read_text()


def test_a_row_has_means_and_counts_and_the_best_of_several_is_bold() -> None:
    runs = [
        {"method": "A", "gpu_seconds": 100, "knn": 50.0, "same_place": 3.0},
        {"method": "A", "gpu_seconds": 100, "knn": 51.0},
        {"method": "B", "gpu_seconds": 100, "knn": 40.0},
        {"method": "B", "gpu_seconds": 300, "knn": 60.0},
    ]
    assert table_of(runs)[2:] == [
        "| 100 | A |  | 3.0 (1) | **50.5** (2) |  |  |  |",
        "| 100 | B |  |  | 40.0 (1) |  |  |  |",
        "| 300 | B |  |  | 60.0 (1) |  |  |  |",
    ]


def test_fine_tunings_of_an_earlier_recipe_do_not_count_and_its_probes_do() -> None:
    old = {"method": "CLoVE Plus", "gpu_seconds": 100, "knn": 50.0, "voc-semantic_mIoU": 16.0}
    new = old | {"knn": 52.0, "voc-semantic_mIoU": 21.0, "stem_scale": 16}
    assert table_of([old, new])[2] == "| 100 | CLoVE Plus |  |  | 51.0 (2) | 21.0 (1) |  |  |"
