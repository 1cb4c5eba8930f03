"""Fixtures of tests that compare with recorded numbers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

GOLDEN = Path(os.environ.get("CLOVE_GOLDEN", Path(__file__).parent))


@pytest.fixture(scope="module")
def recorded_file() -> Callable[[str], dict[str, Any]]:
    """Reader of recorded arrays (.npz) and tables (.json), for fixtures that last longer."""

    def read(name: str) -> dict[str, Any]:
        path = GOLDEN / name
        if not path.exists():
            absent = pytest.fail if "CLOVE_GOLDEN" in os.environ else pytest.skip
            absent(f"no golden file {path}")
        if path.suffix == ".json":
            table: dict[str, Any] = json.loads(path.read_text())
            return table
        with np.load(path) as arrays:
            return dict(arrays)

    return read
