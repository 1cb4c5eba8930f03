"""The page of differences between torchvision's detectors and the protocols names its tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "protocol-differences.md"


def rows() -> list[str]:
    """The rows of the first table."""
    table = PAGE.read_text().partition("|---|---|---|---|\n")[2].partition("\n\n")[0]
    return table.splitlines()


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_all_differences_have_a_row() -> None:
    assert len(rows()) == 21


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.split("|")[1].strip())
def test_a_difference_is_held_by_tests_that_exist(row: str) -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", row)
    assert named
    for file, function in named:
        assert function in functions(ROOT / "tests" / file)
