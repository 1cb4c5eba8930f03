"""Recipes: published ones have the authors' numbers, small ones can be compared with each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

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
    same = replace(config, method=other.method, optimizer=other.optimizer)
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
