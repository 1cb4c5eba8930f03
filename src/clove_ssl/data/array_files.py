"""Archives of arrays (``.npz``), of which nothing is believed before it is checked.

A small archive can claim, or be inflated to, any number of bytes. So all sizes are looked at before
memory is asked for, and arrays are made of bytes that are there.
"""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_PLAIN = "biufU"
# What zipfile raises for damaged archives, OSError for places before the start of the file.
_DAMAGE = (zipfile.BadZipFile, zlib.error, OSError, EOFError, LookupError, RuntimeError)


def read_arrays(path: Path, *, most_bytes: int) -> dict[str, NDArray[Any]]:
    """All arrays of an archive by name; ``ValueError`` for any other file.

    Args:
        path: The archive.
        most_bytes: What its arrays may have together.
    """
    with path.open("rb") as file:
        try:
            return _read(file, most_bytes)
        except _DAMAGE as error:
            raise ValueError(str(error) or type(error).__name__) from None


def _read(file: IO[bytes], most_bytes: int) -> dict[str, NDArray[Any]]:
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        claimed = sum(entry.file_size for entry in entries)
        if claimed > most_bytes:
            raise ValueError(
                f"it holds {claimed / 2**20:,.0f} MiB, more than {most_bytes / 2**20:,.0f}"
            )
        return {
            entry.filename.removesuffix(".npy"): _array(archive.read(entry)) for entry in entries
        }


def _array(content: bytes) -> NDArray[Any]:
    stream = io.BytesIO(content)
    try:
        read_header = _HEADERS[np.lib.format.read_magic(stream)]
        shape, by_columns, dtype = read_header(stream)
    except Exception as error:  # the header is a Python expression, which fails in many ways
        raise ValueError(f"the header of an array makes no sense: {error}") from None
    # Of texts without characters any number fits into no bytes; NumPy makes some of them.
    is_plain = dtype.kind in _PLAIN and dtype.itemsize > 0
    if not is_plain or not all(0 <= side < 2**48 for side in shape):
        raise ValueError(f"an array of shape {str(shape)[:80]} and type {str(dtype)[:40]}")
    rest = content[stream.tell() :]
    if len(rest) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"an array of shape {str(shape)[:80]} has {len(rest)} bytes")
    if not rest:
        return np.zeros(shape, dtype)
    # A copy, which can be written to.
    return np.array(np.frombuffer(rest, dtype).reshape(shape, order="F" if by_columns else "C"))
