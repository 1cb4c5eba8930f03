"""Programs that are seldom run still fit the package."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NAMES = sorted(path.stem for path in BENCHMARKS.glob("*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_every_name_it_imports_is_there(name: str) -> None:
    import_module(f"benchmarks.{name}")
