"""Recipes: published ones have the authors' numbers, small ones can be compared with each other."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from clove_ssl import cli
from clove_ssl.methods.config import QueuedConfig
from clove_ssl.methods.recipes import all_recipes, recipe
from clove_ssl.registry import METHODS


class Published(NamedTuple):
    """What papers and released scripts say."""

    optimizer: str
    batch: int
    peak_lr: float
    weight_decay: float
    decays_norms: bool
    warmup: float
    epochs: int
    sync_norm: bool
    momentum: tuple[float, float] | None  # of the teacher, at the start and at the end
    scale: tuple[float, float]  # of crops


SLOW, RISING = (0.999, 0.999), (0.99, 1.0)
MOCO = Published("sgd", 256, 0.03, 1e-4, True, 0, 200, False, SLOW, (0.2, 1.0))
PIXPRO = Published("lars", 1024, 4.0, 1e-5, False, 5, 400, True, RISING, (0.08, 1.0))
PUBLISHED = {
    "byol-r50-200ep": Published("lars", 4096, 4.8, 1e-6, False, 10, 200, True, RISING, (0.08, 1.0)),
    "moco-r50-200ep": MOCO,
    "densecl-r50-200ep": MOCO,
    "resim-r50-200ep": MOCO,
    "detco-r50-200ep": MOCO,
    "cp2-r50-200ep": MOCO._replace(peak_lr=0.015),
    "setsim-r50-200ep": MOCO._replace(batch=512, peak_lr=0.06),
    "pixpro-r50-400ep": PIXPRO,
    "slotcon-r50-200ep": PIXPRO._replace(batch=512, peak_lr=2.0, epochs=200),
    "vicregl-r50-300ep": Published("lars", 2048, 1.6, 1e-6, False, 10, 300, True, None, (0.08, 1)),
}
SMALL = [name for name in all_recipes() if name.endswith("-r18-small")]
PHOTOS = 13_000  # what small recipes are made for


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_recipe_has_the_authors_numbers(name: str) -> None:
    config = recipe(name, Path("run"))
    optimizer, method = config.optimizer, config.method
    teacher: Any = getattr(method, "teacher", None)
    assert config.backbone.name == "resnet50"
    assert {spec.size for spec in method.view_specs() if spec.role == "global"} == {224}
    assert PUBLISHED[name] == Published(
        optimizer.name,
        config.batch_size,
        pytest.approx(optimizer.peak_lr(config.batch_size)),
        optimizer.weight_decay,
        optimizer.decay == "all",
        optimizer.warmup_epochs,
        config.epochs,
        config.sync_norm,
        (teacher.momentum, teacher.final_momentum) if teacher else None,
        method.view_specs()[0].scale,
    )


@pytest.mark.parametrize("name", ["pixpro-r50-400ep", "slotcon-r50-200ep"])
def test_pixpro_and_slotcon_end_at_one_millionth(name: str) -> None:
    config = recipe(name, Path("run"))
    final = config.optimizer.final_lr * config.optimizer.peak_lr(config.batch_size)
    assert final == pytest.approx(1e-6)


def test_every_method_that_trains_has_a_small_recipe() -> None:
    trained = {name for name in METHODS.names() if METHODS.load(name).trains}
    assert {name.removesuffix("-r18-small") for name in SMALL} == trained


@pytest.mark.parametrize("name", SMALL)
def test_small_recipes_differ_in_their_method_only(name: str) -> None:
    config, other = recipe(name, Path("run")), recipe("clove-r18-small", Path("run"))
    # CLoVE Plus has other sizes of weights.
    backbone = replace(config.backbone, stem_scale=1.0, last_norm=None)
    same = replace(config, method=other.method, optimizer=other.optimizer, backbone=backbone)
    assert same == other
    crops = {
        (spec.size, spec.scale, spec.ratio, spec.interpolation, spec.flip_probability)
        for spec in (*config.method.view_specs(), *other.method.view_specs())
        if spec.role == "global"
    }
    assert len(crops) == 1


@pytest.mark.parametrize("name", SMALL)
def test_small_recipes_suit_a_thousand_steps(name: str) -> None:
    config = recipe(name, Path("run"))
    method, teacher = config.method, getattr(config.method, "teacher", None)
    assert config.optimizer.warmup_epochs * PHOTOS / config.batch_size < 200
    if teacher is not None:
        assert teacher.momentum <= 0.99
        # An exported teacher must not stand still while its student goes on.
        assert method.export == "student" or teacher.final_momentum <= 0.995  # type: ignore[attr-defined]
    if isinstance(method, QueuedConfig):
        assert method.queue_size <= PHOTOS / 3
        # MoCo's SGD is made for a million steps; after a thousand it has hardly begun.
        assert config.optimizer.name == "lars"
        # Who trains on one view only must not see blurred ones only.
        assert len({spec.blur_probability for spec in method.view_specs()}) == 1


@pytest.fixture
def plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package beside ours with a method of its own, whose recipes are still to be written."""
    folder = tmp_path / "foreign_twin"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "config.py").write_text(
        "from clove_ssl.methods.byol.config import BYOLConfig\n"
        "class TwinConfig(BYOLConfig):\n    name = 'foreign-twin'\n"
    )
    point = EntryPoint("foreign-twin", "foreign_twin.config:TwinConfig", METHODS.group)
    monkeypatch.setattr(METHODS, "_plugins", lambda: (point,))
    monkeypatch.syspath_prepend(tmp_path)
    yield folder / "recipes.py"
    for module in [name for name in sys.modules if name.startswith("foreign_twin")]:
        del sys.modules[module]


@pytest.mark.parametrize("name", ["clove-demo", "foreign-demo"])
def test_a_recipe_of_a_plug_in_takes_the_place_of_none(
    plug_in: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plug_in.write_text(f"def other(out):\n    ...\nRECIPES = {{{name!r}: other}}\n")
    if name == "foreign-demo":
        assert {"clove-demo", "foreign-demo"} <= set(all_recipes())
        return
    assert cli.main(["pretrain", "clove-demo", "--out", "run"]) == 2
    said = capsys.readouterr().err
    assert "'clove-demo' is defined twice, in clove_ssl.methods.clove.recipes and in" in said
    assert "foreign_twin.recipes" in said


def test_a_method_of_a_plug_in_takes_the_place_of_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    point = EntryPoint("byol", "elsewhere.config:BYOLConfig", METHODS.group)
    monkeypatch.setattr(METHODS, "_plugins", lambda: (point,))
    assert cli.main(["list", "methods"]) == 2
    assert "The method 'byol' is defined twice" in capsys.readouterr().err
