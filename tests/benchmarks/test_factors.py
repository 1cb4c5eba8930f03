"""Seven changes in eight runs: the design is balanced, and its study can be run."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from benchmarks.factors import FACTORS, design, effects, read_means, study_of
from clove_ssl.config import files
from clove_ssl.study.plan import make_plan
from clove_ssl.study.studies import open_study

STUDIES = Path(__file__).parents[2] / "benchmarks/studies"
NAMES = tuple("abcdefg")


def test_any_two_changes_are_made_together_as_often_as_one_without_the_other() -> None:
    runs = [set(names) for names in design(NAMES).values()]
    assert len(runs) == 8
    for one, other in combinations(NAMES, 2):
        counts = [(one in run, other in run) for run in runs]
        assert {counts.count(kind) for kind in counts} == {2}
        assert len(set(counts)) == 4


def test_what_each_change_adds_is_found_again(tmp_path: Path) -> None:
    planted = {name: 0.5 * number - 1 for number, name in enumerate(NAMES)}
    runs = design(NAMES)
    rows = [
        f"dense-voc,{label},mIoU,,,{20 + sum(planted[name] for name in names)}"
        for label, names in runs.items()
    ]
    incomplete = "dense-voc,run-0001110,knn,,,70"
    other = "dense-voc,clove,mIoU,,,99"
    header = "table,method,figure,paper,paper_epochs,mean"
    file = tmp_path / "tables.csv"
    file.write_text("\n".join([header, *rows, incomplete, other]))
    means = read_means(runs, file)
    assert list(means) == ["dense-voc: mIoU"]
    assert effects(runs, means["dense-voc: mIoU"]) == pytest.approx(planted)


@pytest.mark.parametrize(("where", "study"), [("gpu", "clove-plus"), ("cpu", "cpu")])
def test_its_study_has_cells_with_valid_configs(where: str, study: str, tmp_path: Path) -> None:
    factors, file = FACTORS[where], tmp_path / "factors.yaml"
    assert len(factors.changes) == 7
    file.write_text(files.to_yaml(study_of(open_study(str(STUDIES / f"{study}.yaml")), factors)))
    plan = make_plan(open_study(str(file)), tmp_path)
    configs = [plan.config_of(cell) for cell in plan.cells if cell.kind == "pretrain"]
    assert len(configs) == 8
    assert len({config.steps * config.batch_size for config in configs}) == 1  # images
    assert factors.steps in {config.steps for config in configs}
