"""Print what the site is built with: the extra ``docs`` of pyproject.toml, for pip."""

from __future__ import annotations

import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[2] / "pyproject.toml"

if __name__ == "__main__":
    extras = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    print(*extras["docs"])
