"""Named, complete configs.

Each method has its own in the module ``recipes`` beside its config, a plug-in too.
The docstring of a recipe says how to start it, what it costs and what to
expect; ``clove list recipes`` prints its first line, ``clove pretrain NAME
--help`` all of it, ``--help-all`` its values. Everything can be overridden on the command line.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.errors import UserError, unknown_name
from clove_ssl.registry import METHODS

Recipe = Callable[[Path], PretrainConfig]


def all_recipes() -> dict[str, Recipe]:
    """Every recipe by its name, method by method."""
    recipes: dict[str, Recipe] = {}
    for config in METHODS.load_all().values():
        folder = config.__module__.rpartition(".")[0]
        if folder and find_spec(f"{folder}.recipes"):
            _add(import_module(f"{folder}.recipes").RECIPES, recipes)
    return recipes


def _add(found: dict[str, Recipe], recipes: dict[str, Recipe]) -> None:
    """Add the recipes of a method; none takes the place of another."""
    for name, make in found.items():
        first = recipes.setdefault(name, make)
        if first is not make:  # methods of one folder share their recipes
            raise UserError(
                f"The recipe {name!r} is defined twice, in {first.__module__} and in "
                f"{make.__module__}. Each name means one recipe: rename that of the plug-in, or "
                "uninstall the plug-in with pip uninstall."
            )


def recipe(name: str, out: Path) -> PretrainConfig:
    """The config called ``name``, writing to ``out``."""
    recipes = all_recipes()
    if name not in recipes:
        raise unknown_name("recipe", name, recipes)
    return recipes[name](out)
