"""Folders that may not be listed; the super-user, as whom some run tests, is never denied."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest


def deny_listing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse to list one folder."""
    listed = os.scandir

    def deny(path: Any = ".") -> Any:
        if str(path) == str(folder):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", deny)
