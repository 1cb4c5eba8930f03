"""Patterns of shards: braces and wildcards, read as a shell reads them."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator

from clove_ssl.errors import UserError

_INNER_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


def find_shards(pattern: str) -> list[str]:
    """Files that ``pattern`` names: braces in their order, then ``*``, ``?`` and ``[]`` sorted."""
    if os.path.exists(pattern):
        return [pattern]
    shards: dict[str, None] = {}
    missing = []
    for path in expand_braces(pattern):
        matches = [path] if os.path.exists(path) else sorted(glob.glob(path, recursive=True))
        shards.update(dict.fromkeys(matches))
        missing += [] if matches else [path]
    if missing:
        others = f" ({len(missing)} shards are missing)" if len(missing) > 1 else ""
        raise UserError(
            f"No file matches {missing[0]}{others}, which --data {pattern!r} asks for. "
            'Check the numbers, or take what is there with --data "FOLDER/*.tar".'
        )
    return list(shards)


def expand_braces(pattern: str) -> Iterator[str]:
    """``a{1,2}b`` and ``a{08..10}b`` as a shell reads them; other braces stay as they are."""
    for braces in _INNER_BRACES.finditer(pattern):
        if choices := _choices(braces[1]):
            before, after = pattern[: braces.start()], pattern[braces.end() :]
            for choice in choices:
                yield from expand_braces(before + choice + after)
            return
    yield pattern


def _choices(inside: str) -> list[str]:
    numbers = _RANGE.fullmatch(inside)
    if not numbers:
        return inside.split(",") if "," in inside else []
    first, last = int(numbers[1]), int(numbers[2])
    is_padded = any(text.startswith("0") and len(text) > 1 for text in numbers.groups())
    width = max(map(len, numbers.groups())) if is_padded else 0
    step = 1 if last >= first else -1
    return [f"{number:0{width}d}" for number in range(first, last + step, step)]
