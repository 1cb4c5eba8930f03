"""What is said about methods is true of the methods that are built."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import clove_ssl
from clove_ssl import cli
from clove_ssl.backbones.build import build_backbone
from clove_ssl.config.bases import MethodConfig
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.methods.recipes import all_recipes
from clove_ssl.methods.teacher_student import TaughtMethod
from clove_ssl.registry import METHODS

PACKAGE = Path(clove_ssl.__file__).parent
PAGES = Path(__file__).parents[2] / "docs" / "methods"


def small(name: str) -> MethodConfig:
    """The recipe for one GPU: complete, and quick to build."""
    recipe = all_recipes()[f"{name}-r18" if name == "random" else f"{name}-r18-small"]
    config = recipe(Path("run")).method
    return config.for_classes(10) if config.needs_labels else config


@pytest.mark.parametrize("name", METHODS.names())
def test_teacher_and_queues_are_those_of_the_built_method(name: str) -> None:
    config = small(name)
    method = config.build(build_backbone(BackboneConfig(name="resnet18")))
    assert config.name == name
    assert isinstance(method, TaughtMethod) == config.has_teacher
    assert (config.exported_branch is not None) == config.has_teacher
    buffers = [key for key, _ in method.named_buffers() if key.endswith("entries")]
    assert bool(buffers) == bool(config.queues)


@pytest.mark.parametrize("name", METHODS.names())
def test_attention_is_shown_where_there_is_some(name: str) -> None:
    method = small(name).build(build_backbone(BackboneConfig(name="resnet18")))
    images = torch.randn(2, 3, 64, 96)
    if not METHODS.load(name).has_attention:
        with pytest.raises(NotImplementedError):
            method.attention_maps(images)
        return
    maps = method.attention_maps(images)
    assert maps.shape[2:] == (2, 3, 2, 3)
    torch.testing.assert_close(maps.sum((-2, -1)), torch.ones(maps.shape[:4]))


KNOW_CLOVE = {
    *("__init__.py", "losses.py"),  # its parts have public names
    *("doctor/self_test.py", "bench/growth.py"),  # it serves as an example
}


def test_nothing_outside_a_method_imports_it() -> None:
    for path in PACKAGE.rglob("*.py"):
        inside = path.relative_to(PACKAGE)
        if inside.parts[0] != "methods" and str(inside) not in KNOW_CLOVE:
            assert not re.search(r"clove_ssl\.methods\.\w+\.\w+ import", path.read_text()), inside


@pytest.mark.parametrize("name", METHODS.names())
def test_a_method_of_a_paper_says_which_and_what_it_compares(name: str) -> None:
    config = METHODS.load(name)
    assert config.kinds or not config.trains
    if config.status in ("baseline", "our own"):
        assert not config.paper
    else:
        assert re.fullmatch(r"[A-Z]\w+ et al\., 20\d\d", config.paper)
        assert config.paper in (config.__doc__ or "")
    assert set(config.kinds) <= {"global", "local", "dense"}


def test_the_list_of_methods_is_the_table_of_the_docs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "methods"]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split() == ["name", "paper", "kind", "teacher", "queues", "status"]
    listed = [re.split(r"\s{2,}", line)[:5] for line in lines]
    rows = re.findall(
        r"^\| \[`([\w-]+)`\]\(\S+\) \|(.*)\|$", (PAGES / "index.md").read_text(), re.M
    )
    shown = [[name, *(cell.strip() for cell in cells.split("|")[:4])] for name, cells in rows]
    assert listed == shown


@pytest.mark.parametrize("name", sorted(set(METHODS.names()) - {"clove"}))
def test_a_method_has_a_page_and_recipes(name: str) -> None:
    page = (PAGES / f"{name}.md").read_text()
    named = [recipe for recipe in all_recipes() if recipe.startswith(f"{name}-")]
    assert len(named) >= 2
    assert any(recipe in page for recipe in named)
