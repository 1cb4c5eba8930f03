"""Damage to bytes and to plain values, drawn from a ``random.Random``.

The generator decides everything, so a case can be made again from its seed, and hypothesis, which
has generators of its own, can shrink one.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from random import Random
from typing import Any

INTERESTING = (0, 1, 2, 7, 8, 127, 128, 255, 256, 32767, 32768, 65535, 65536)
LARGE = (2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
TOKENS = (
    *(b"\0", b"\xff\xff\xff\xff", b"\n", b"-1", b"1e308", b"-1e999", b"NaN", b"Infinity"),
    *(b"99999999999999999999", b"1e400", b"0x7f", b"null", b"true", b"{}", b"[]", b'""', b"\xe9"),
    *(b"\xed\xa0\x80", b"\xef\xbb\xbf", b"../", b"/", b"%s%n", b"\xf0\x9f\x92\xa9", b"\x1b[2J"),
)
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 0.5, -0.0, 1e308, float("inf"), float("nan"), 2**31, 2**63),
    *(10**400, -(10**30), "", "a", "1", "-1", "\0", "\ud800", "../../etc", "é" * 300, "nan"),
    *([], {}, [[]], [None], {"": None}, [1] * 1000, {"a": {"a": {"a": []}}}, "9" * 5000),
)
LONGEST = 4 * 2**20
"""Bytes of a case; repeated pieces would grow without it."""


def damaged(data: bytes, chance: Random) -> bytes:
    """The bytes with one to four kinds of damage."""
    for _ in range(chance.choice((1, 1, 1, 2, 3, 4))):
        data = chance.choice(_DAMAGES)(data, chance)
    return data[:LONGEST]


def _place(data: bytes, chance: Random) -> int:
    """Anywhere, and often near the beginning, where headers are."""
    if chance.random() < 0.4:
        return chance.randrange(min(len(data), 64) + 1)
    return chance.randrange(len(data) + 1)


def _flip_bit(data: bytes, chance: Random) -> bytes:
    if not data:
        return data
    place = min(_place(data, chance), len(data) - 1)
    return data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]


def _set_byte(data: bytes, chance: Random) -> bytes:
    place = _place(data, chance)
    return data[:place] + bytes([chance.randrange(256)]) + data[place + 1 :]


def _set_number(data: bytes, chance: Random) -> bytes:
    """Write a number at the edge of some type, in either byte order, over what is there."""
    code = chance.choice("BHIQ")
    value = chance.choice(INTERESTING + LARGE) % 2 ** (8 * struct.calcsize(code))
    packed = struct.pack(chance.choice("<>") + code, value)
    place = _place(data, chance)
    return data[:place] + packed + data[place + len(packed) :]


def _insert_token(data: bytes, chance: Random) -> bytes:
    place = _place(data, chance)
    return data[:place] + chance.choice(TOKENS) + data[place:]


def _remove(data: bytes, chance: Random) -> bytes:
    place = _place(data, chance)
    return data[:place] + data[place + chance.choice((1, 2, 4, 16, 100)) :]


def _cut_off(data: bytes, chance: Random) -> bytes:
    return data[: _place(data, chance)]


def _repeat(data: bytes, chance: Random) -> bytes:
    place, length = _place(data, chance), chance.choice((1, 2, 8, 50, 512))
    piece = data[place : place + length]
    return data[:place] + piece * chance.choice((2, 3, 10, 200)) + data[place + length :]


def _move(data: bytes, chance: Random) -> bytes:
    length = chance.choice((1, 4, 16, 100, 512))
    source, target = _place(data, chance), _place(data, chance)
    piece = data[source : source + length]
    return data[:target] + piece + data[target + len(piece) :]


def _zero(data: bytes, chance: Random) -> bytes:
    place, length = _place(data, chance), chance.choice((1, 4, 32, 512))
    return data[:place] + bytes(len(data[place : place + length])) + data[place + length :]


_DAMAGES: tuple[Callable[[bytes, Random], bytes], ...] = (
    *(_flip_bit, _set_byte, _set_number, _insert_token, _remove, _cut_off),
    *(_repeat, _move, _zero),
)


def damaged_value(value: Any, chance: Random) -> Any:
    """A tree of lists and dictionaries in which one to three nodes are something else."""
    for _ in range(chance.choice((1, 1, 2, 3))):
        value = _with_change(value, chance)
    return value


def _with_change(value: Any, chance: Random) -> Any:
    if not isinstance(value, dict | list) or not value or chance.random() < 0.15:
        return _another(value, chance)
    if isinstance(value, list):
        place = chance.randrange(len(value))
        if chance.random() < 0.1:
            return chance.choice((value[:place], value + value, [*value, chance.choice(value)]))
        return [*value[:place], _with_change(value[place], chance), *value[place + 1 :]]
    key = chance.choice(list(value))
    if chance.random() < 0.1:
        return {name: inner for name, inner in value.items() if name != key}
    if chance.random() < 0.05:
        return {**value, chance.choice(("", "x", "é", "__proto__", key + key)): value[key]}
    return {**value, key: _with_change(value[key], chance)}


def _another(value: Any, chance: Random) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool) and chance.random() < 0.5:
        return chance.choice((-value, value * 1000, str(value), value - 10**6, [value], 0.37))
    if isinstance(value, str) and chance.random() < 0.5:
        return damaged(value.encode("utf-8", "surrogatepass"), chance).decode("utf-8", "replace")
    return chance.choice(ODD_VALUES)


def damaged_json(data: bytes, chance: Random) -> bytes:
    """JSON with other values in it, or, now and then, with damaged bytes."""
    if chance.random() < 0.25:
        return damaged(data, chance)
    if chance.random() < 0.03:
        return b"[" * chance.choice((50, 2000, 100_000)) + data
    try:
        value = damaged_value(json.loads(data), chance)
    except (ValueError, RecursionError):  # it is none any more
        return damaged(data, chance)
    return json.dumps(value).encode("utf-8", "surrogatepass")
