"""YAML without its traps: mappings, lists, texts, numbers, yes and no, and nothing.

A config file is small and flat, so anything else is a mistake or an attack: tags
and dates are not looked at, ``<<`` is a name like any other, a key comes once, and
what aliases stand for counts as if it was written out. All this is seen while the
text is read for the first time, event by event, before any value is made of it.
"""

from __future__ import annotations

from typing import Any

import yaml

from clove_ssl.errors import UserError

LARGEST = 64 * 1024
"""Characters of a file; a config of ours has some five thousand."""
DEEPEST = 20
"""Levels of lists and mappings within each other."""
MOST_ALIASES = 100
MOST_VALUES = 5_000
"""Values of a file when its aliases are written out."""
_PLAIN = {f"tag:yaml.org,2002:{kind}" for kind in ("bool", "int", "float", "null")}


class _PlainLoader(yaml.SafeLoader):
    """Knows no dates, no merge keys and no tags; refuses a key that comes twice."""

    yaml_implicit_resolvers = {  # noqa: RUF012  # as the base class has it
        first: [(tag, pattern) for tag, pattern in known if tag in _PLAIN]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        values = super().construct_mapping(node, deep=deep)
        if len(values) < len(node.value):
            keys = [self.construct_object(key) for key, _ in node.value]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise yaml.YAMLError(f"{twice} comes twice in one place")
        return values


def parse_yaml(text: str, *, where: object, such_as: str = "epochs: 200") -> Any:
    """The plain values of a text that comes from ``where`` and has lines like ``such_as``."""
    if len(text) > LARGEST:
        raise UserError(
            f"{where} has more than {LARGEST:,} characters, which no config has. Give the "
            "config.yaml of a run, or a file like it."
        )
    try:
        _look_over(text)
        return yaml.load(text, Loader=_PlainLoader)  # noqa: S506  # it makes plain values only
    except (yaml.YAMLError, ValueError) as error:  # such as a number of ten thousand digits
        told = " ".join(str(error).split())
        raise UserError(
            f"{where} is not a YAML file of plain values: {told}. Write lines like `{such_as}`."
        ) from None


def _look_over(text: str) -> None:
    """Refuse what is too deep, too long when written out, or more than plain values."""
    open_nodes: list[tuple[str | None, int]] = [(None, 0)]  # anchor, and values so far
    sizes: dict[str, int] = {}
    aliases = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        size = 0
        if getattr(event, "tag", None) is not None:
            raise yaml.YAMLError(f"the tag {event.tag} is no part of a config")
        if isinstance(event, yaml.AliasEvent):
            aliases += 1
            if event.anchor not in sizes:
                raise yaml.YAMLError(f"*{event.anchor} stands for nothing, or for itself")
            size = sizes[event.anchor]
        elif isinstance(event, yaml.ScalarEvent):
            size = 1
            sizes |= {} if event.anchor is None else {event.anchor: size}
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, 1))
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = open_nodes.pop()
            sizes |= {} if anchor is None else {anchor: size}
        anchor, before = open_nodes[-1]
        open_nodes[-1] = (anchor, before + size)
        if len(open_nodes) > DEEPEST + 1:
            raise yaml.YAMLError(f"more than {DEEPEST} lists and mappings within each other")
        if aliases > MOST_ALIASES or before + size > MOST_VALUES:
            raise yaml.YAMLError(
                f"more than {MOST_ALIASES} aliases or {MOST_VALUES:,} values, aliases written out"
            )
