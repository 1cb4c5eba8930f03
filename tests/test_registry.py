"""Plug-ins are found where packages lie, also those that are installed while a program runs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from clove_ssl.registry import METHODS


def install(folder: Path, name: str) -> None:
    """Leave what pip leaves of a package with one method."""
    papers = folder / f"{name}-1.0.dist-info"
    papers.mkdir()
    (papers / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (papers / "entry_points.txt").write_text(f"[{METHODS.group}]\n{name} = {name}:Config\n")


def test_a_plug_in_is_known_as_soon_as_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = METHODS.names()
    install(tmp_path, "first-twin")
    os.utime(tmp_path, (1, 1))  # clocks of file systems are coarse
    monkeypatch.syspath_prepend(tmp_path)
    assert METHODS.names() == sorted([*before, "first-twin"])
    install(tmp_path, "second-twin")
    assert METHODS.names() == sorted([*before, "first-twin", "second-twin"])
    monkeypatch.undo()
    assert METHODS.names() == before


def test_a_plug_in_in_an_archive_is_known_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = METHODS.names()
    (tmp_path / "packed").mkdir()
    install(tmp_path / "packed", "third-twin")
    archive = shutil.make_archive(str(tmp_path / "plug-in"), "zip", tmp_path / "packed")
    monkeypatch.syspath_prepend(archive)
    assert METHODS.names() == sorted([*before, "third-twin"])
