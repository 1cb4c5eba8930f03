"""Interpret the instructions of a pickle as data, within limits.

A pickle is a program. Python's own reader imports and calls what it names, and even with names that
are allowed, a hostile file can change objects of NumPy until they write past their memory. Here an
instruction pushes a number, a text, a list or a mapping; names, calls and changes go to methods
that a subclass defines, and the ones of this class refuse all of them.

Every instruction costs time in proportion to its own bytes, and there is a limit to their number,
so no file can keep the reader busy: keys are of types that cannot be made to collide, whole numbers
are short, and what a small file could repeat at will is counted.
"""

from __future__ import annotations

import codecs
import mmap
import pickle
import struct
from collections.abc import Callable, Iterable
from typing import Any

MAX_INSTRUCTIONS = 250_000
MAX_DEPTH = 1000  # marks that are open at once
MAX_INTEGER_BYTES = 16
MAX_TEXT_BYTES = 2**29
MAX_KEY = 2**60  # larger numbers may have equal hashes
MAX_ODD_KEYS = 1000  # keys whose hashes a file can choose: tuples, fractions
_MAX_LINE = 1000  # of a number or a name that is written out
_LONGEST_NAME = 4096  # longer strings of Python 2 are the bytes of arrays, and are not copied

_SIMPLE_KEYS = (str, bytes, bool, type(None))
_STOP = ord(".")


class Name:
    """A name that a pickle asks for; it leads to nothing by itself."""

    __slots__ = ("full",)

    def __init__(self, full: str) -> None:
        self.full = full


class PickleMachine:
    """Runs one pickle.

    Args:
        source: The file's content.
        start: Where in the content the pickle begins.
        max_instructions: Beyond how many instructions a file is refused.
    """

    def __init__(
        self,
        source: bytes | mmap.mmap,
        *,
        start: int = 0,
        max_instructions: int = MAX_INSTRUCTIONS,
    ) -> None:
        self.position = start
        self._source = source
        self._view = memoryview(source).toreadonly()
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._steps_left = max_instructions
        self._max_instructions = max_instructions
        # No honest pickle makes more bytes of text than it has itself.
        self._bytes_left = len(self._view)
        self._odd_keys_left = MAX_ODD_KEYS

    def run(self) -> Any:
        """The value that the pickle describes; ``position`` is then behind its end."""
        while True:
            self.spend(1)
            code = self.take(1)[0]
            if code == _STOP:
                return self._stack.pop()
            # A table of known instructions: whatever is not in it ends the reading.
            step = _STEPS.get(code)
            if step is None:
                raise ValueError(f"it has the instruction {bytes([code])!r}, which no array needs")
            step(self)

    def name(self, full: str) -> Any:
        """What stands for something that the pickle imports."""
        raise pickle.UnpicklingError(f"it asks for {full[:200]}, which no array needs")

    def call(self, function: Any, args: Any) -> Any:
        """The result of a call."""
        raise pickle.UnpicklingError("it calls what is no function")

    def build(self, instance: Any, state: Any) -> None:
        """Set the state of an object."""
        raise pickle.UnpicklingError(f"it changes a {type(instance).__name__}")

    def make_instance(self, class_: Any, args: Any) -> Any:
        """An instance that is made without a call."""
        raise pickle.UnpicklingError("it makes an instance, which no array needs")

    def outside(self, reference: Any) -> Any:
        """A value that is not in the pickle."""
        raise pickle.UnpicklingError("it refers to values outside the file")

    def set_items(self, target: Any, pairs: list[tuple[Any, Any]]) -> None:
        """Add to a mapping."""
        if type(target) is not dict:
            raise ValueError(f"it adds keys to a {type(target).__name__}")
        target.update(pairs)

    def spend(self, steps: int) -> None:
        """Count work that is as much as this many instructions."""
        self._steps_left -= steps
        if self._steps_left < 0:
            raise ValueError(f"it has more than {self._max_instructions:,} instructions")

    def encoded(self, args: Any) -> bytes:
        """``_codecs.encode``, by which old pickles write bytes, once for each text."""
        text, encoding = args if len(args) == 2 else (*args, "latin1")
        if encoding not in ("latin1", "latin-1") or not isinstance(text, str):
            raise pickle.UnpicklingError("it encodes what is no text in latin1")
        self._bytes_left -= len(text)
        if self._bytes_left < 0:
            raise ValueError("it repeats its bytes, as no program does")
        return text.encode("latin1")

    def check_keys(self, keys: Iterable[Any]) -> None:
        """Refuse keys that could be made to collide, which takes forever."""
        for key in keys:
            if isinstance(key, _SIMPLE_KEYS) or (type(key) is int and abs(key) < MAX_KEY):
                continue
            # A tuple in a tuple could hold itself a million times over.
            if isinstance(key, (list, dict, int)) or (
                isinstance(key, tuple)
                and not all(isinstance(each, (*_SIMPLE_KEYS, int)) for each in key)
            ):
                raise ValueError(f"it has a {type(key).__name__} as a key")
            self._odd_keys_left -= 1
            if self._odd_keys_left < 0:
                raise ValueError(
                    f"more than {MAX_ODD_KEYS:,} of its keys are neither text nor whole"
                )

    def take(self, count: int) -> memoryview:
        """The next bytes."""
        end = self.position + count
        if count < 0 or end > len(self._view):
            raise EOFError("it ends in the middle")
        piece = self._view[self.position : end]
        self.position = end
        return piece

    def line(self, limit: int = _MAX_LINE) -> bytes:
        """The bytes up to the end of a line."""
        end = self._source.find(b"\n", self.position, self.position + limit)
        if end < 0:
            raise EOFError("it ends in the middle of a line, or the line is too long")
        content = bytes(self._view[self.position : end])
        self.position = end + 1
        return content

    def number(self, layout: str) -> Any:
        """The next number, in a layout of ``struct``."""
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def push(self, value: Any) -> None:
        """Put a value on the stack."""
        self._stack.append(value)

    def pop(self) -> Any:
        """Take the last value from the stack."""
        return self._stack.pop()

    def top(self) -> Any:
        """The last value on the stack."""
        return self._stack[-1]

    def mark(self) -> None:
        """Remember how high the stack is."""
        if len(self._marks) >= MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH:,} deep")
        self._marks.append(len(self._stack))

    def pop_marked(self) -> list[Any]:
        """Take all values since the last mark."""
        height = self._marks.pop()
        values = self._stack[height:]
        del self._stack[height:]
        return values

    def remember(self, index: int) -> None:
        """Keep the last value under a number."""
        self._memo[index] = self._stack[-1]

    def remember_next(self) -> None:
        """Keep the last value under the next number."""
        self.remember(len(self._memo))

    def recall(self, index: int) -> None:
        """Push a value that was kept."""
        self._stack.append(self._memo[index])

    def add_pairs(self, flat: list[Any]) -> None:
        """Add keys and values, in turn, to the mapping on the stack."""
        if len(flat) % 2:
            raise ValueError("it has a key without a value")
        self.check_keys(flat[::2])
        self.set_items(self.top(), list(zip(flat[::2], flat[1::2], strict=True)))

    def extend(self, values: list[Any]) -> None:
        """Add to the list on the stack."""
        target = self.top()
        if type(target) is not list:
            raise ValueError(f"it appends to a {type(target).__name__}")
        target.extend(values)


def _integer(digits: bytes) -> int:
    if len(digits) > 2 * MAX_INTEGER_BYTES:
        raise ValueError("a whole number has too many digits")
    return int(digits)


def _written_integer(machine: PickleMachine) -> int | bool:
    digits = machine.line()
    if digits in (b"00", b"01"):  # how truth values are written
        return digits == b"01"
    return _integer(digits)


def _packed_integer(machine: PickleMachine, length: int) -> int:
    if not 0 <= length <= MAX_INTEGER_BYTES:
        raise ValueError(f"a whole number has {length:,} bytes")
    return int.from_bytes(machine.take(length), "little", signed=True)


def _string(machine: PickleMachine, length: int) -> str | memoryview:
    """A string of Python 2, which may be a name or the bytes of an array."""
    content = machine.take(length)
    return str(content, "latin1") if length <= _LONGEST_NAME else content


def _quoted_string(machine: PickleMachine) -> str:
    quoted = machine.line(limit=len(machine._view))
    if len(quoted) < 2 or quoted[:1] != quoted[-1:] or quoted[:1] not in (b'"', b"'"):
        raise ValueError("a string has no quotes")
    content, _ = codecs.escape_decode(quoted[1:-1])
    return str(content, "latin1")


def _escaped_text(machine: PickleMachine) -> str:
    return str(machine.line(limit=len(machine._view)), "raw-unicode-escape")


def _text(machine: PickleMachine, length: int) -> str:
    if length > MAX_TEXT_BYTES:
        raise ValueError(f"a text has {length:,} bytes")
    return str(machine.take(length), "utf-8", "surrogatepass")


def _global(machine: PickleMachine) -> Any:
    module, name = machine.line(), machine.line()
    return machine.name(f"{module.decode()}.{name.decode()}")


def _stack_global(machine: PickleMachine) -> Any:
    name, module = machine.pop(), machine.pop()
    if not isinstance(name, str) or not isinstance(module, str):
        raise ValueError("it asks for a name that is no text")
    return machine.name(f"{module}.{name}")


def _reduce(machine: PickleMachine) -> Any:
    args, function = machine.pop(), machine.pop()
    if type(args) is not tuple:
        raise ValueError("it calls a function without arguments")
    return machine.call(function, args)


def _new_object(machine: PickleMachine) -> Any:
    args, class_ = machine.pop(), machine.pop()
    return machine.make_instance(class_, args)


def _build(machine: PickleMachine) -> None:
    state = machine.pop()
    machine.build(machine.top(), state)


def _set_item(machine: PickleMachine) -> None:
    value, key = machine.pop(), machine.pop()
    machine.add_pairs([key, value])


def _marked_dict(machine: PickleMachine) -> None:
    flat = machine.pop_marked()
    machine.push({})
    machine.add_pairs(flat)


def _tuple(machine: PickleMachine, count: int) -> tuple[Any, ...]:
    return tuple(reversed([machine.pop() for _ in range(count)]))


_Step = Callable[[PickleMachine], None]


def _pushing(value: Callable[[PickleMachine], Any]) -> _Step:
    return lambda machine: machine.push(value(machine))


# The instructions whose effect is to push a value.
_VALUES: dict[bytes, Callable[[PickleMachine], Any]] = {
    b"N": lambda _: None,
    b"\x88": lambda _: True,
    b"\x89": lambda _: False,
    b"I": _written_integer,
    b"L": lambda m: _integer(m.line().removesuffix(b"L")),
    b"J": lambda m: m.number("<i"),
    b"K": lambda m: m.number("<B"),
    b"M": lambda m: m.number("<H"),
    b"\x8a": lambda m: _packed_integer(m, m.number("<B")),
    b"\x8b": lambda m: _packed_integer(m, m.number("<i")),
    b"F": lambda m: float(m.line()),
    b"G": lambda m: m.number(">d"),
    b"S": _quoted_string,
    b"U": lambda m: _string(m, m.number("<B")),
    b"T": lambda m: _string(m, m.number("<i")),
    b"V": _escaped_text,
    b"\x8c": lambda m: _text(m, m.number("<B")),
    b"X": lambda m: _text(m, m.number("<I")),
    b"\x8d": lambda m: _text(m, m.number("<Q")),
    b"C": lambda m: bytes(m.take(m.number("<B"))),
    b"B": lambda m: m.take(m.number("<I")),
    b"\x8e": lambda m: m.take(m.number("<Q")),
    b"\x96": lambda m: m.take(m.number("<Q")),
    b")": lambda _: (),
    b"]": lambda _: [],
    b"}": lambda _: {},
    b"t": lambda m: tuple(m.pop_marked()),
    b"l": lambda m: m.pop_marked(),
    b"\x85": lambda m: _tuple(m, 1),
    b"\x86": lambda m: _tuple(m, 2),
    b"\x87": lambda m: _tuple(m, 3),
    b"c": _global,
    b"\x93": _stack_global,
    b"R": _reduce,
    b"\x81": _new_object,
    b"Q": lambda m: m.outside(m.pop()),
}

_ACTIONS: dict[bytes, _Step] = {
    b"\x80": lambda m: _ignore(m.take(1)),  # the protocol
    b"\x95": lambda m: _ignore(m.take(8)),  # the length of the next part
    b"(": lambda m: m.mark(),
    b"0": lambda m: _ignore(m.pop()),
    b"p": lambda m: m.remember(_integer(m.line())),
    b"q": lambda m: m.remember(m.number("<B")),
    b"r": lambda m: m.remember(m.number("<I")),
    b"\x94": lambda m: m.remember_next(),
    b"g": lambda m: m.recall(_integer(m.line())),
    b"h": lambda m: m.recall(m.number("<B")),
    b"j": lambda m: m.recall(m.number("<I")),
    b"a": lambda m: m.extend([m.pop()]),
    b"e": lambda m: m.extend(m.pop_marked()),
    b"d": _marked_dict,
    b"s": _set_item,
    b"u": lambda m: m.add_pairs(m.pop_marked()),
    b"b": _build,
}


def _ignore(_: Any) -> None:
    """What an instruction says beyond its effect."""


_STEPS: dict[int, _Step] = {
    **{code[0]: _pushing(value) for code, value in _VALUES.items()},
    **{code[0]: action for code, action in _ACTIONS.items()},
}
