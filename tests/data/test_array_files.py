"""Archives of arrays, of which nothing is believed before it is checked."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from clove_ssl.data.array_files import read_arrays


def write_array(path: Path, *, kind: str, shape: tuple[int, ...], content: bytes = b"") -> None:
    stream = io.BytesIO()
    header = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", stream.getvalue() + content)


def test_arrays_are_read_as_they_were_written(tmp_path: Path) -> None:
    arrays = {"a": np.arange(6).reshape(2, 3), "b": np.array(["x", ""]), "c": np.zeros((0, 3))}
    np.savez(tmp_path / "a.npz", **arrays)
    for name, found in read_arrays(tmp_path / "a.npz", most_bytes=10**4).items():
        assert np.array_equal(found, arrays[name])
        assert found.dtype == arrays[name].dtype


@pytest.mark.parametrize("kind", ["<U0", "<i8"])
def test_a_header_cannot_ask_for_memory(kind: str, tmp_path: Path) -> None:
    write_array(tmp_path / "a.npz", kind=kind, shape=(2**40,))
    with pytest.raises(ValueError, match="an array of shape"):
        read_arrays(tmp_path / "a.npz", most_bytes=10**4)
