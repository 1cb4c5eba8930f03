"""The studies behind published figures can still be run."""

from __future__ import annotations

from pathlib import Path

import pytest

from clove_ssl.study.plan import make_plan
from clove_ssl.study.studies import open_study

STUDIES = sorted((Path(__file__).parents[2] / "benchmarks/studies").glob("*.yaml"))


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.name)
def test_a_study_has_cells_with_valid_configs(path: Path, tmp_path: Path) -> None:
    study = open_study(str(path))
    kinds = {cell.kind for cell in make_plan(study, tmp_path).cells}
    assert kinds >= {"pretrain", "probe"}
    assert ("finetune" in kinds) == bool(study.finetunings)
