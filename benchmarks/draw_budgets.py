"""Scores of methods over GPU seconds as pictures, from the results of runs that were made.

Run:  python -m benchmarks.draw_budgets benchmarks/results/...-budgets.jsonl --out docs/images
Each line of the file is a run: method, gpu_seconds, seed, and scores by name. One SVG file per
score: budgets-NAME.svg. ``clove study --beside`` draws the same from the folders of studies.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from clove_ssl.report.series import Series, SeriesPoint, paint_series

TITLES = {
    "voc_segmentation": "Linear probe of c5 on VOC's masks, mIoU in percent",
    "same_place": "Cells that find the same place in another view, percent",
    "knn": "k-NN on Imagenette, accuracy in percent",
    "voc-semantic_mIoU": "voc-semantic, 600 steps of fine-tuning, mIoU in percent",
}

Run = dict[str, Any]


def series_of(runs: list[Run], score: str) -> list[Series]:
    """A line for every method, in the order of the file."""
    found: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if score in run:
            found[run["method"]][run["gpu_seconds"]].append(run[score])
    return [
        Series(name, tuple(SeriesPoint(s, tuple(values)) for s, values in sorted(points.items())))
        for name, points in found.items()
    ]


def draw(runs: list[Run], out: Path) -> None:
    """Write a picture for every score."""
    for score, title in TITLES.items():
        picture = paint_series(
            series_of(runs, score), title=title, across="GPU seconds of pre-training"
        )
        if picture is not None:
            (out / f"budgets-{score.replace('_', '-')}.svg").write_text(f"{picture}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    draw([json.loads(line) for line in given.results.read_text().splitlines()], given.out)
