"""Pickles that are made to burn time or memory end with one sentence, soon."""

from __future__ import annotations

import io
import os
import pickle
import struct
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from clove_ssl.errors import UserError
from clove_ssl.weights.array_pickles import PickledArray, read_array_pickle
from clove_ssl.weights.checkpoint_files import read_content

PRIME = 2**61 - 1  # whole multiples of it have the hash 0


def opcodes(*parts: bytes) -> bytes:
    return b"\x80\x02" + b"".join(parts) + b"."


def whole(value: int) -> bytes:
    packed = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(packed)]) + packed


def name(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text)) + text.encode()


def colliding_keys() -> bytes:
    return opcodes(b"}(", *(whole(PRIME * n) + b"N" for n in range(1, 40_000)), b"u")


def colliding_tuples() -> bytes:
    keys = (whole(PRIME * n) + b"K\x01\x86N" for n in range(1, 20_000))
    return opcodes(b"}(", *keys, b"u")


def tuple_in_tuple_as_key() -> bytes:
    """Each one holds the one before twice: hashing it would take 2^60 steps."""
    return opcodes(b"})", b"q\x00h\x00\x86" * 60, b"Ns")


def deep_tuple_as_key() -> bytes:
    """Hashing it would overrun the stack."""
    return opcodes(b"})", b"\x85" * 200_000, b"Ns")


def huge_integer() -> bytes:
    return opcodes(b"\x8b", struct.pack("<i", 3_000_000), b"\x7f" * 3_000_000)


def written_integer() -> bytes:
    return opcodes(b"L", b"9" * 4_000_000, b"L\n")


def endless_program() -> bytes:
    return opcodes(b"N0" * 3_000_000, b"N")


def deep_memo() -> bytes:
    return opcodes(b"N", b"".join(b"r" + struct.pack("<I", n) for n in range(2_000_000)))


def marks_in_marks() -> bytes:
    return opcodes(b"(" * 2_000_000)


def repeated_bytes() -> bytes:
    """A text of a megabyte, and a hundred thousand calls that make bytes of it."""
    encode = b"h\x01h\x00h\x02\x86R0"
    start = name("a" * 2**20) + b"q\x00c_codecs\nencode\nq\x01" + name("latin1") + b"q\x02"
    return opcodes(start, encode * 40_000)


def repeated_pairs() -> bytes:
    pairs = b"](" + b"".join(name(str(n)) + b"N\x86" for n in range(20_000)) + b"eq\x00"
    ordered = b"ccollections\nOrderedDict\nq\x01"
    return opcodes(pairs, ordered, b"h\x01h\x00\x85R0" * 20_000)


HOSTILE = {
    make.__name__: make
    for make in (
        colliding_keys,
        colliding_tuples,
        tuple_in_tuple_as_key,
        deep_tuple_as_key,
        huge_integer,
        written_integer,
        endless_program,
        deep_memo,
        marks_in_marks,
        repeated_bytes,
        repeated_pairs,
    )
}


def torch_file(pickled: bytes) -> bytes:
    """A file of torch around any pickle."""
    buffer = io.BytesIO()
    torch.save({"w": torch.zeros(2)}, buffer)
    new = io.BytesIO()
    with zipfile.ZipFile(buffer) as old, zipfile.ZipFile(new, "w") as archive:
        for entry in old.namelist():
            content = pickled if entry.endswith("data.pkl") else old.read(entry)
            archive.writestr(entry, content)
    return new.getvalue()


def old_torch_file(pickled: bytes) -> bytes:
    buffer = io.BytesIO()
    for value in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}):
        pickle.dump(value, buffer, protocol=2)
    return buffer.getvalue() + pickled + pickle.dumps([], protocol=2)


FORMS = {"pickle": bytes, "torch": torch_file, "old torch": old_torch_file}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_pickle_that_burns_time_is_refused_soon(kind: str, form: str, tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    path.write_bytes(FORMS[form](HOSTILE[kind]()))
    start = time.process_time()
    with pytest.raises(UserError, match=r"weights\.pth (cannot be read|was not loaded)"):
        read_content(path)
    assert time.process_time() - start < 2  # one second, and the machine may be busy


@pytest.mark.parametrize("asked", ["torch\nTensor", "torch\nFloatTensor", "builtins\nbytearray"])
def test_memory_that_a_file_only_asks_for_is_not_reserved(asked: str, tmp_path: Path) -> None:
    pickled = opcodes(f"c{asked}\n".encode(), whole(2**33), b"\x85R")
    (tmp_path / "a.pth").write_bytes(torch_file(pickled))
    with pytest.raises(UserError, match="it asks for an empty"):
        read_content(tmp_path / "a.pth")


def test_what_a_file_mentions_often_is_made_once(tmp_path: Path) -> None:
    inner = {f"w{n}": n for n in range(3000)}
    state = {"conv": np.zeros(2**18)}
    content = {f"copy{n}": inner for n in range(9000)} | {"model": state, "state_dict": state}
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps(content, protocol=2))
    start = time.process_time()
    states = read_content(path).states
    assert time.process_time() - start < 2
    assert states["model"]["conv"] is states["state_dict"]["conv"]


def test_a_sparse_file_of_terabytes_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.pkl"
    path.write_bytes(b"\x80\x02X\xff\xff\xff\x7f")
    os.truncate(path, 40 * 2**30)
    with pytest.raises(UserError, match="cannot be read"):
        read_content(path)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("code", ["<f4", ">f8", "<i8", "|u1", "|b1", "<f2"])
def test_arrays_of_every_protocol_and_type_are_read(protocol: int, code: str) -> None:
    array = np.asfortranarray((np.arange(6).reshape(2, 3) % 2).astype(code))
    read = read_array_pickle(pickle.dumps({"a": [array, -5, 0.25, None, True, "ü"]}, protocol))["a"]
    assert isinstance(read[0], PickledArray)
    np.testing.assert_array_equal(read[0].resolve(), array)
    assert read[0].resolve().dtype == array.dtype.newbyteorder("=")
    assert read[1:] == [-5, 0.25, None, True, "ü"]
