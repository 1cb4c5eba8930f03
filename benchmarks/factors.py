"""Which of seven changes to CLoVE Plus help: eight runs instead of fourteen.

Run:  python -m benchmarks.factors gpu write benchmarks/studies/clove-plus.yaml > factors.yaml
      clove study factors.yaml --out studies/factors --devices 0 0 --kinds pretrain probe
      python -m benchmarks.factors gpu read studies/factors/tables.csv
or the same with ``cpu`` and benchmarks/studies/cpu.yaml.

Every change is in half of the runs, and each other change in half of those, so the effect of one is
a difference of two means of four (a fractional factorial design of resolution III): all eight
runs speak of every change. What two changes do only together is counted as a third one's.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain, compress, product
from pathlib import Path
from statistics import fmean
from typing import Any

from clove_ssl.config import files
from clove_ssl.study.config import BudgetConfig, PretrainingEntry, StudyConfig
from clove_ssl.study.studies import open_study

Changes = dict[str, Any]
Design = dict[str, tuple[str, ...]]
"""The changes of each of the eight runs, by the label of the run."""


@dataclass(frozen=True)
class Factors:
    """What is asked: seven changes to a recipe, in runs of so many steps.

    A change may say how many steps it has instead; timing each run would take as long as a part
    of it.
    """

    recipe: str
    steps: int
    changes: dict[str, Changes]


FACTORS = {
    "gpu": Factors(
        recipe="clove-plus-r18-small",
        steps=2670,  # 60 seconds of an H200
        changes={
            "variance-100": {"method": {"whole": {"variance": 100.0}}},
            "few-flips": {"method": {"views": {"flip_probability": 0.1}}},
            "freer-crops": {"method": {"views": {"global_scale": [0.08, 1.0]}}},
            "beta-6": {"method": {"whole": {"beta": 6.0}}},
            "lr-8": {"optimizer": {"lr": 8.0}},
            "weight-decay-1e-4": {"optimizer": {"weight_decay": 1e-4}},
            "batch-512": {"batch_size": 512, "steps": 1335},
        },
    ),
    "cpu": Factors(
        recipe="clove-plus-r18-cpu",
        steps=250,  # five minutes of one core
        changes={
            "few-flips": {"method": {"views": {"flip_probability": 0.1}}},
            "freer-crops": {"method": {"views": {"global_scale": [0.08, 1.0]}}},
            "beta-6": {"method": {"whole": {"beta": 6.0}}},
            "lr-16": {"optimizer": {"lr": 16.0}},
            "stage-c3": {"method": {"stages": ["c3", "c4", "c5"]}},
            "large-views-alone": {"method": {"whole": {"small_views": False}}},
            "width-2048": {"method": {"whole": {"width": 2048}}},
        },
    ),
}
PREFIX = "run-"


def design(changes: Iterable[str]) -> Design:
    """Eight runs for the names of seven changes."""
    names = tuple(changes)
    runs = {}
    for a, b, c in product((False, True), repeat=3):
        # Three changes are combined in all ways. The others are made where two of these agree, and
        # where an odd number of the three is made: so any two changes meet in two of the runs.
        made = (a, b, c, a == b, a == c, b == c, a ^ b ^ c)
        label = PREFIX + "".join("1" if each else "0" for each in made)
        runs[label] = tuple(compress(names, made))
    return runs


def study_of(base: StudyConfig, factors: Factors) -> StudyConfig:
    """A study of the design, with the data, probes and fine-tunings of another."""
    runs = tuple(
        PretrainingEntry(
            label=label,
            recipe=factors.recipe,
            changes=merged([{"steps": factors.steps}, *(factors.changes[name] for name in names)]),
        )
        for label, names in design(factors.changes).items()
    )
    return replace(
        base,
        title="CLoVE Plus: seven changes in eight runs",
        reference=runs[0].label,
        budget=BudgetConfig(kind="recipe"),
        pretrainings=runs,
    )


def merged(changes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """All changes as one nested mapping."""
    result: dict[str, Any] = {}
    for change in changes:
        for name, value in change.items():
            both = [result.get(name, {}), value]
            result[name] = merged(both) if isinstance(value, Mapping) else value
    return result


def effects(runs: Design, means: Mapping[str, float]) -> dict[str, float]:
    """What each change adds to a score, from the means of the runs by their labels."""
    return {
        name: fmean(means[label] for label, names in runs.items() if name in names)
        - fmean(means[label] for label, names in runs.items() if name not in names)
        for name in dict.fromkeys(chain.from_iterable(runs.values()))
    }


def read_means(runs: Design, file: Path) -> dict[str, dict[str, float]]:
    """Means by score, then by run, of the ``tables.csv`` of a study; whole columns only."""
    found: dict[str, dict[str, float]] = {}
    with file.open() as lines:
        for row in csv.DictReader(lines):
            if row["method"].startswith(PREFIX) and row["mean"]:
                by_run = found.setdefault(f"{row['table']}: {row['figure']}", {})
                by_run[row["method"]] = float(row["mean"])
    return {score: means for score, means in found.items() if means.keys() == runs.keys()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("where", choices=FACTORS)
    parser.add_argument("what", choices=("write", "read"))
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    asked = FACTORS[given.where]
    if given.what == "write":
        print(files.to_yaml(study_of(open_study(str(given.file)), asked)), end="")
    else:
        planned = design(asked.changes)
        for score, means in read_means(planned, given.file).items():
            added = effects(planned, means)
            shown = ", ".join(f"{name} {added[name]:+.2f}" for name in asked.changes)
            print(f"{score}: {shown}")
