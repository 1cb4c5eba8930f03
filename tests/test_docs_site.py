"""The documentation as a site: all pages are in its contents, and broken links are found."""

from __future__ import annotations

import importlib.util
import re
import sys
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
    spec = importlib.util.spec_from_file_location(f"site_{name}", DOCS / "site" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for names
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


def test_consoles_are_marked_for_the_style_that_wraps_their_lines() -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    [highlight] = [each for each in settings["markdown_extensions"] if "pymdownx.highlight" in each]
    assert highlight["pymdownx.highlight"]["pygments_lang_class"]
    assert ".language-console code" in (DOCS / "site.css").read_text()


def test_every_step_of_the_tutorial_is_shown_with_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tutorial = script("tutorial")
    monkeypatch.setattr(tutorial, "PAGE", tmp_path / "tutorial.md")
    monkeypatch.setattr(tutorial, "PICTURES", tmp_path / "pictures")
    steps = [
        tutorial.Step("Which version", "", "clove --version", "."),
        tutorial.Step("Which verbs", "All of them.", "clove --help", ".", "And more.", kept=4),
    ]
    tutorial.main(tmp_path / "work", steps)
    page = (tmp_path / "tutorial.md").read_text()
    version = f"clove {clove_ssl.__version__}"
    assert f"## 1. Which version\n\n```console\n$ clove --version\n{version}\n```" in page
    assert "$ clove --help\nusage: clove <verb> [options]\n\n...\n" in page
    failing = tutorial.Step("Broken", "", "clove nothing", "nowhere")
    with pytest.raises(SystemExit, match="Unknown verb"):
        tutorial.main(tmp_path / "work", [*steps, failing])


def test_the_tutorial_ends_within_a_quarter_of_an_hour() -> None:
    """Its commands say themselves how long they take; what is beside them takes minutes."""
    commands = " ".join(step.command for step in script("tutorial").STEPS)
    minutes = [float(number) for number in re.findall(r"--minutes (\S+)", commands)]
    assert len(minutes) == 2
    assert sum(minutes) <= 10
