"""Named, complete configs.

The docstring of a recipe says how to start it, what it costs and what to
expect; ``clove list recipes`` prints its first line, ``clove pretrain NAME
--help`` its values. Everything can be overridden on the command line.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.config.recipes import (
    baselines,
    clove,
    clove_plus,
    contrastive,
    dense,
    foregrounds,
    windows,
)
from clove_ssl.errors import unknown_name

Recipe = Callable[[Path], PretrainConfig]
RECIPES: dict[str, Recipe] = {
    **clove.RECIPES,
    **clove_plus.RECIPES,
    **contrastive.RECIPES,
    **dense.RECIPES,
    **foregrounds.RECIPES,
    **windows.RECIPES,
    **baselines.RECIPES,
}


def recipe(name: str, out: Path) -> PretrainConfig:
    """The config called ``name``, writing to ``out``."""
    if name not in RECIPES:
        raise unknown_name("recipe", name, RECIPES)
    return RECIPES[name](out)
