"""What ``clove list`` shows."""

from __future__ import annotations

from collections.abc import Iterator

from clove_ssl.config.recipes import RECIPES
from clove_ssl.registry import METHODS


def describe(what: str) -> Iterator[str]:
    """One line per known name of a kind."""
    if what == "recipes":
        yield from (f"{name:<26} {_first_line(make)}" for name, make in RECIPES.items())
    elif what == "methods":
        yield from (f"{name:<12} {_first_line(METHODS.load(name))}" for name in METHODS.names())
    else:
        from clove_ssl.backbones.build import backbone_names

        yield from backbone_names()
        yield "timm:NAME (any timm network with feature maps; needs the extra `timm`)"


def _first_line(described: object) -> str:
    return (described.__doc__ or "").strip().splitlines()[0]
