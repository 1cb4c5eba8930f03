"""Scores of methods over GPU seconds, as pictures and as a table, from runs that were made.

Run:  python -m benchmarks.draw_budgets benchmarks/results/...-budgets.jsonl --out docs/images
Each line of the file is a run: method, gpu_seconds, seed, and scores by name. One SVG file per
score: budgets-NAME.svg. The table goes to the standard output, in Markdown; README and
docs/results/clove-plus.md have it, and a test compares them. ``clove study --beside`` draws the
same pictures from the folders of studies.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from clove_ssl.methods.clove_plus.recipes import STEM_SCALE
from clove_ssl.report.series import Series, SeriesPoint, paint_series

TITLES = {
    "voc_segmentation": "Linear probe of c5 on VOC segmentation, mIoU in percent",
    "same_place": "Correspondence accuracy between two views, percent",
    "knn": "k-NN on Imagenette, accuracy in percent",
    "voc-semantic_mIoU": "voc-semantic, 600 steps of fine-tuning, mIoU in percent",
    "voc-c4_AP50": "voc-c4, 600 steps of fine-tuning, AP50 by VOC's rule in percent",
}
COLUMNS = {
    "voc_segmentation": "VOC probe, mIoU",
    "same_place": "correspondence",
    "knn": "k-NN",
    "voc-semantic_mIoU": "`voc-semantic`, mIoU",
    "voc-c4_AP50": "`voc-c4`, AP50",
    "voc-c4_AP50_COCO_rule": "`voc-c4`, AP50 by COCO's rule",
}

Run = dict[str, Any]


def has_score(run: Run, score: str) -> bool:
    """Whether a run was measured so, and as a run of today's recipe would be."""
    # Fine-tunings depend on the size of the stem, which early runs of CLoVE Plus had smaller.
    is_fine_tuned = score.startswith("voc-")
    earlier = run["method"] == "CLoVE Plus" and run.get("stem_scale") != STEM_SCALE
    return score in run and not (is_fine_tuned and earlier)


def series_of(runs: list[Run], score: str) -> list[Series]:
    """A line for every method, in the order of the file; one not measured so keeps its colour."""
    times = sorted({run["gpu_seconds"] for run in runs})
    return [
        Series(name, tuple(SeriesPoint(time, _values(runs, name, time, score)) for time in times))
        for name in dict.fromkeys(run["method"] for run in runs)
    ]


def draw(runs: list[Run], out: Path) -> None:
    """Write a picture for every score."""
    for score, title in TITLES.items():
        picture = paint_series(
            series_of(runs, score), title=title, across="GPU seconds of pre-training"
        )
        if picture is not None:
            (out / f"budgets-{score.replace('_', '-')}.svg").write_text(f"{picture}\n")


def table_of(runs: list[Run]) -> list[str]:
    """Lines of a Markdown table: means, in brackets of how many runs, the best of several bold."""
    lines = [f"| GPU seconds | method | {' | '.join(COLUMNS.values())} |", "|---" * 8 + "|"]
    for seconds in sorted({run["gpu_seconds"] for run in runs}):
        measured = {
            method: [_values(runs, method, seconds, score) for score in COLUMNS]
            for method in dict.fromkeys(
                run["method"] for run in runs if run["gpu_seconds"] == seconds
            )
        }
        best = [_best(column) for column in zip(*measured.values(), strict=True)]
        for method, row in measured.items():
            cells = [_cell(values, top) for values, top in zip(row, best, strict=True)]
            lines.append(f"| {seconds} | {method} | {' | '.join(cells)} |")
    return lines


def _values(runs: list[Run], method: str, seconds: float, score: str) -> tuple[float, ...]:
    """A score of all runs of a method that took that long."""
    made = [run for run in runs if (run["method"], run["gpu_seconds"]) == (method, seconds)]
    return tuple(run[score] for run in made if has_score(run, score))


def _best(column: Sequence[Sequence[float]]) -> float | None:
    """The highest mean, where there are several to choose from."""
    means = [fmean(values) for values in column if values]
    return max(means) if len(means) > 1 else None


def _cell(values: Sequence[float], best: float | None) -> str:
    if not values:
        return ""
    mean = f"{fmean(values):.1f}"
    return f"**{mean}** ({len(values)})" if fmean(values) == best else f"{mean} ({len(values)})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    made = [json.loads(line) for line in given.results.read_text().splitlines()]
    draw(made, given.out)
    print("\n".join(table_of(made)))
