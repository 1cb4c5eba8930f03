"""Read pickles of NumPy arrays without calling anything that a pickle names.

A pickle is a program: it may import and call whatever it likes. Here every name
it can import leads to a stand-in of this module that holds values and does
nothing; any other name ends the reading. Not even NumPy's own reconstruction
runs: arrays are made from shape, type and bytes, after these were checked.
The same stand-ins serve ``torch.load``, see :func:`torch_stand_ins`.
"""

from __future__ import annotations

import argparse
import io
import math
import pickle
import re
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

_NUMBER_TYPE = re.compile(r"[<>|=]?([biuf]\d{1,2}|\?)")
_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")  # NumPy 1, NumPy 2


class NumberType:
    """Stands in for ``numpy.dtype``: the type of an array's numbers."""

    def __init__(self, code: Any = "", *_: Any) -> None:
        self.code = code.decode("latin1") if isinstance(code, bytes) else code
        self.order = "="

    def __setstate__(self, state: Any) -> None:
        self.order = state[1]

    def resolve(self) -> np.dtype[Any]:
        """The type itself; only plain numbers are let through."""
        if not isinstance(self.code, str) or not _NUMBER_TYPE.fullmatch(self.code):
            raise pickle.UnpicklingError(f"arrays of type {self.code!r} are not numbers")
        dtype = np.dtype(self.code)
        return dtype.newbyteorder(">") if self.order == ">" else dtype


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
        dtype = number_type.resolve()
        if isinstance(content, str):  # written by Python 2
            content = content.encode("latin1")
        if any(side < 0 for side in shape) or len(content) != math.prod(shape) * dtype.itemsize:
            raise pickle.UnpicklingError(f"an array of shape {shape} has {len(content)} bytes")
        array = np.frombuffer(bytearray(content), dtype=dtype)
        # The byte order of the file need not be the machine's, which torch insists on.
        shaped = array.reshape(shape, order="F" if by_columns else "C")
        return shaped.astype(dtype.newbyteorder("="), order="C")


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


def make_dict(*pairs: Any) -> dict[Any, Any]:
    """Stands in for ``collections.OrderedDict``."""
    return dict(*pairs)


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


def read_array_pickle(content: bytes) -> Any:
    """The values of a pickle of arrays and plain containers."""
    return _ArrayUnpickler(io.BytesIO(content), encoding="latin1").load()


# The one in C reserves memory for whatever size a pickle claims; this one reads what is there.
class _ArrayUnpickler(pickle._Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in {("collections", "OrderedDict"), ("__builtin__", "dict")}:
            return _Inert(make_dict)
        stand_in = _STAND_INS.get(f"{module}.{name}")
        if stand_in is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _Inert(stand_in)

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to values outside the file")


class _Inert:
    """A callable that a pickle can call, but neither change nor make instances of."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, *args: Any) -> Any:
        return self._make(*args)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("it changes a function")
