"""The surface files of the DensePose project in miniature: a made-up body of few vertices."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np

CLASSES = {"f8": 6, "f4": 7, "i1": 8, "u1": 9, "i2": 10, "u2": 11, "i4": 12, "u4": 13}
TYPES = {"f8": 9, "f4": 7, "i1": 1, "u1": 2, "i2": 3, "u2": 4, "i4": 5, "u4": 6}


def write_matlab(path: Path, arrays: dict[str, np.ndarray | list], *, compress: bool) -> None:
    """A MATLAB file of version 5; lists become cells."""
    body = b""
    for name, value in arrays.items():
        element = matrix(name, value)
        if compress:
            squeezed = zlib.compress(element)
            element = struct.pack("<II", 15, len(squeezed)) + squeezed
        body += element
    path.write_bytes(b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x0100) + b"IM" + body)


def matrix(name: str, value: np.ndarray | list) -> bytes:
    if isinstance(value, list):
        kind, shape = 1, (1, len(value))
        data = b"".join(matrix("", cell) for cell in value)
    else:
        code = value.dtype.str[1:]
        kind, shape = CLASSES[code], value.shape
        data = element(TYPES[code], value.tobytes(order="F"))
    flags = element(6, struct.pack("<II", kind, 0))
    dimensions = element(5, struct.pack(f"<{len(shape)}i", *shape))
    return element(14, flags + dimensions + element(1, name.encode()) + data)


def element(kind: int, data: bytes) -> bytes:
    if 0 < len(data) <= 4:
        return struct.pack("<HH", kind, len(data)) + data.ljust(4, b"\0")
    return struct.pack("<II", kind, len(data)) + data + b"\0" * (-len(data) % 8)


def python2_pickle(pairs: np.ndarray) -> bytes:
    """The dictionary of distances as Python 2 pickled it, which is how it was published."""

    def text(data: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(data)) + data

    kind = b"cnumpy\ndtype\n" + text(b"f4") + b"K\0K\1\x87R(K\3" + text(b"<")
    kind += b"NNN" + b"J\xff\xff\xff\xff" * 2 + b"K\0tb"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85" + text(b"b") + b"\x87R"
    )
    shape = b"J" + struct.pack("<i", pairs.size) + b"K\1\x86"
    array += b"(K\1" + shape + kind + b"\x89" + text(pairs.astype("<f4").tobytes()) + b"tb"
    return b"\x80\2}" + text(b"Pdist_matrix") + array + b"s."


def write_surface_files(
    folder: Path, *, per_part: int = 4, compress: bool = True
) -> dict[str, np.ndarray]:
    """All four files; returns the numbers in them."""
    draws = np.random.default_rng(0)
    count = 24 * per_part
    parts = np.repeat(np.arange(1, 25), per_part).astype(np.uint8)[None]
    u, v = draws.random((2, count, 1))
    index = (draws.permutation(count) + 1).astype(np.uint16)[:, None]
    pairs = draws.random((count * (count - 1) // 2, 1)).astype(np.float32)
    tables = draws.random((2, 24, 256, 256)).astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    mesh = {"Part_ID_subdiv": parts, "U_subdiv": u, "V_subdiv": v}
    write_matlab(folder / "SMPL_subdiv.mat", mesh, compress=compress)
    write_matlab(folder / "SMPL_SUBDIV_TRANSFORM.mat", {"index": index}, compress=compress)
    (folder / "Pdist_matrix.pkl").write_bytes(python2_pickle(pairs))
    symmetries = {"U_transforms": list(tables[0]), "V_transforms": list(tables[1])}
    write_matlab(folder / "UV_symmetry_transforms.mat", symmetries, compress=False)
    return mesh | {"index": index, "pairs": pairs, "tables": tables}
