"""Read pickles of NumPy arrays without calling anything that a pickle names.

A pickle is a program: it may import and call whatever it likes. Here its instructions are data
(:mod:`~clove_ssl.weights.pickle_machine`), and every name it can ask for leads to a stand-in of
this module that holds values and does nothing; any other name ends the reading. No object of NumPy
is built or changed by a pickle: arrays are made from shape, type and bytes, after these were
checked. The same stand-ins serve ``torch.load``, see :func:`torch_stand_ins`.
"""

from __future__ import annotations

import argparse
import math
import mmap
import pickle
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clove_ssl.weights.pickle_machine import Name, PickleMachine

_NUMBER_TYPES = {"?", "b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"}
_MAX_SIDES = 32
_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")  # NumPy 1, NumPy 2


class NumberType:
    """Stands in for ``numpy.dtype``: the type of an array's numbers."""

    def __init__(self, code: Any = "", *_: Any) -> None:
        self.code = code.decode("latin1") if isinstance(code, bytes) else code
        self.order: Any = "="

    def __setstate__(self, state: Any) -> None:
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else None
        self.order = order.decode("latin1") if isinstance(order, bytes) else order

    def resolve(self) -> np.dtype[Any]:
        """The type itself; only plain numbers are let through."""
        code = self.code if isinstance(self.code, str) else ""
        order = code[:1] if code[:1] in {"<", ">", "|", "="} else ""
        plain = code.removeprefix(order)
        if plain not in _NUMBER_TYPES:
            raise pickle.UnpicklingError(f"arrays of type {str(self.code)[:20]!r} are not numbers")
        return np.dtype(plain).newbyteorder(">" if ">" in (order, self.order) else "<")


class ArrayClass:
    """Stands in for ``numpy.ndarray``, which a pickle only mentions."""

    def __init__(self, *_: Any) -> None:
        raise pickle.UnpicklingError("numpy.ndarray is called directly")


class PickledArray:
    """Stands in for an array until its parts are checked."""

    def __init__(self, *_: Any) -> None:
        self._state: Any = None

    def __setstate__(self, state: Any) -> None:
        self._state = state

    def resolve(self) -> NDArray[Any]:
        """The array; its bytes must be as many as its shape says."""
        _, shape, number_type, by_columns, content = self._state
        if not isinstance(number_type, NumberType):
            raise pickle.UnpicklingError("an array does not say of which type its numbers are")
        dtype = number_type.resolve()
        if isinstance(content, str):  # written by Python 2
            content = content.encode("latin1")
        if not isinstance(content, (bytes, bytearray, memoryview)) or not _is_shape(shape):
            raise pickle.UnpicklingError("an array has no bytes, or no shape")
        if len(content) != math.prod(shape) * dtype.itemsize:
            raise pickle.UnpicklingError(f"an array of shape {shape} has {len(content)} bytes")
        array = np.frombuffer(content, dtype=dtype)
        # The byte order of the file need not be the machine's, which torch insists on.
        shaped = array.reshape(shape, order="F" if by_columns is True or by_columns == 1 else "C")
        return shaped.astype(dtype.newbyteorder("="), order="C")


def _is_shape(shape: Any) -> bool:
    """Whether these are whole numbers, few and small enough to be multiplied."""
    return (
        isinstance(shape, tuple)
        and len(shape) <= _MAX_SIDES
        and all(type(side) is int and 0 <= side < 2**48 for side in shape)
    )


class Unasked:
    """Stands in for what nobody asks for: a NumPy number such as a best accuracy, or a log."""

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


def encode_latin1(text: str, encoding: str = "latin1") -> bytes:
    """Stands in for ``_codecs.encode``, by which old pickles write bytes."""
    if encoding not in ("latin1", "latin-1") or not isinstance(text, str):
        raise pickle.UnpicklingError(f"text in the encoding {encoding!r}")
    return text.encode("latin1")


_STAND_INS: dict[str, Callable[..., Any]] = {
    "numpy.dtype": NumberType,
    "numpy.ndarray": ArrayClass,
    "_codecs.encode": encode_latin1,
    **{f"{module}._reconstruct": PickledArray for module in _MODULES},
    **{f"{module}.scalar": Unasked for module in _MODULES},
    # MMEngine keeps the curves of a training run beside its weights.
    "mmengine.logging.history_buffer.HistoryBuffer": Unasked,
}


def torch_stand_ins() -> list[Any]:
    """What ``torch.load`` may build besides tensors: arrays, and options as plain namespaces."""
    named: list[Any] = [(stand_in, name) for name, stand_in in _STAND_INS.items()]
    classes = {type_ for type_ in _STAND_INS.values() if isinstance(type_, type)}
    paths = [(PurePosixPath, "pathlib.PosixPath"), (PurePosixPath, "pathlib._local.PosixPath")]
    return [*named, *classes, *paths, PurePosixPath, argparse.Namespace]


def mapped(path: Path) -> mmap.mmap:
    """The content of a file, of which no more is read than is asked for."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def read_array_pickle(content: bytes | mmap.mmap) -> Any:
    """The values of a pickle of arrays and plain containers; arrays are stand-ins still."""
    return _ArrayMachine(content).run()


_MAPPINGS = {"collections.OrderedDict", "__builtin__.dict"}
_FROM_BUFFER = {"numpy.core.numeric._frombuffer", "numpy._core.numeric._frombuffer"}


class _ArrayMachine(PickleMachine):
    """Gives stand-ins for arrays, and refuses every other name."""

    def name(self, full: str) -> Any:
        if full in _STAND_INS or full in _MAPPINGS or full in _FROM_BUFFER:
            return Name(full)
        return super().name(full)

    def call(self, function: Any, args: Any) -> Any:
        if not isinstance(function, Name):
            return super().call(function, args)
        if function.full == "_codecs.encode":
            return self.encoded(args)
        if function.full in _MAPPINGS:
            return self._mapping(*args)
        if function.full in _FROM_BUFFER:
            return _from_buffer(*args)
        return _STAND_INS[function.full](*args)

    def build(self, instance: Any, state: Any) -> None:
        if type(instance) not in (NumberType, PickledArray, Unasked):
            super().build(instance, state)
        instance.__setstate__(state)

    def _mapping(self, items: Any = ()) -> dict[Any, Any]:
        """Python 2 gives the pairs of an ordered dictionary as a list of lists."""
        if not isinstance(items, (dict, list, tuple)):
            raise ValueError("a dictionary is made of what are no pairs")
        pairs = list(items.items() if isinstance(items, dict) else items)
        self.spend(len(pairs))
        self.check_keys(key for key, _ in pairs)
        return dict(pairs)


def _from_buffer(content: Any, number_type: Any, shape: Any, order: Any) -> PickledArray:
    if order not in ("C", "F"):
        raise pickle.UnpicklingError("an array is in no known order")
    array = PickledArray()
    array.__setstate__((1, shape, number_type, order == "F", content))
    return array
