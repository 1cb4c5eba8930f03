"""The documentation as a site: all pages are in its contents, and broken links are found."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import clove_ssl

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MADE = {"api.md", "changelog.md", "contributing.md", "security.md"}
"""Pages that are written when the site is built."""


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / "site" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pages_of(contents: Any) -> Iterator[str]:
    if isinstance(contents, str):
        yield contents
    for part in contents.values() if isinstance(contents, dict) else contents:
        if not isinstance(contents, str):
            yield from pages_of(part)


def test_every_page_is_in_the_contents_of_the_site() -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    listed = list(pages_of(settings["nav"]))
    there = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert len(listed) == len(set(listed))
    assert set(listed) == there | MADE


def test_links_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.html").write_text('<h2 id="here"></h2><a href="sub/b.html#there">b</a>')
    (tmp_path / "sub" / "b.html").write_text(
        '<a href="../a.html#here">fine</a><a href="../gone.html">gone</a><img src="no.png">'
        '<a href="#nowhere">n</a><a href="https://example.org/x">other</a>'
    )
    broken = script("check_links").broken_links(tmp_path)
    assert [line.split(" (")[0] for line in broken] == [
        "a.html: sub/b.html#there",
        "sub/b.html: ../gone.html",
        "sub/b.html: no.png",
        "sub/b.html: #nowhere",
    ]


def test_the_reference_has_every_public_name() -> None:
    pytest.importorskip("mkdocs", reason="needs mkdocs: pip install clove-ssl[docs]")
    page = script("hooks").reference_page()
    for name in clove_ssl.__all__:
        assert f".{name}\n" in page
