"""Ways to damage a file, one after the other.

A damage of a whole file is a change of its bytes or of its kind. A damage of a value replaces
one value of a JSON tree, or leaves it out, so that the file is still valid.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WRONG: dict[str, Any] = {
    "nothing": None,
    "a truth": True,
    "a negative number": -3,
    "a fraction": 0.5,
    "no number": float("nan"),
    "a huge number": 10**30,
    "text": "odd \N{SNOWMAN}",
    "a list": [1, "x", None],
    "an empty table": {},
    "a table": {"odd": [1]},
}
MOST_OF_A_KIND = 2  # entries of a list, or of a table of many
"""Files of runs repeat themselves; the first entries stand for the others."""


def whole_files(path: Path) -> Iterator[str]:
    """Damage a file in one way after the other; gives what was done, and mends it at the end."""
    content = path.read_bytes()
    changed = bytearray(content)
    changed[len(content) // 2 : len(content) // 2 + 1] = b"\xf3"
    damages = {
        "empty": b"",
        "half of it": content[: len(content) // 2],
        "an odd byte": bytes(changed),
        "zeros": bytes(100),
        "no text": b"\xff\xfe\x00\xd8" * 20,
        "a mark before it": b"\xef\xbb\xbf" + content,
        "deep": b"[" * 5000,
        "a deep table": b'{"a":' * 5000,
        "a long number": b"1" * 6000,
        "a word": b"odd",
        "an empty table": b"{}",
    }
    for name, damaged in damages.items():
        path.write_bytes(damaged)
        yield f"{path.name}: {name}"
    path.unlink()
    yield f"{path.name}: missing"
    for name, make in {
        "a folder": path.mkdir,
        "a pipe": lambda: os.mkfifo(path),
        "a link to itself": lambda: path.symlink_to(path.name),
    }.items():
        make()
        yield f"{path.name}: {name}"
        path.rmdir() if name == "a folder" else path.unlink()
    path.write_bytes(content)


def values(path: Path) -> Iterator[str]:
    """Replace one value after the other of a JSON file; mends it at the end."""
    content = path.read_text(encoding="utf-8")
    for name, damaged in damaged_trees(json.loads(content)):
        path.write_text(json.dumps(damaged), encoding="utf-8")
        yield f"{path.name}: {name}"
    path.write_text(content, encoding="utf-8")


def damaged_trees(tree: Any) -> Iterator[tuple[str, Any]]:
    """Copies of a tree in which one value is of another kind, or absent."""
    for place in _places(tree):
        for name, value in {**WRONG, "absent": ...}.items():
            told = f"{'.'.join(map(str, place)) or 'all of it'} is {name}"
            yield told, _replaced(tree, place, value)


def _places(tree: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield before
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _places(value, (*before, key))
    elif isinstance(tree, list):
        for number, value in enumerate(tree[:MOST_OF_A_KIND]):
            yield from _places(value, (*before, number))


def _replaced(tree: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return None if value is ... else value
    result = copy.deepcopy(tree)
    inner = result
    for key in place[:-1]:
        inner = inner[key]
    if value is not ...:
        inner[place[-1]] = value
    else:
        del inner[place[-1]]
    return result
