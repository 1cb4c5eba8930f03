"""Files that are damaged, foreign or hostile: one message, exit code 2, and nothing runs."""

from __future__ import annotations

import argparse
import io
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from clove_ssl import cli
from clove_ssl.errors import UserError
from clove_ssl.weights import checkpoint_files
from clove_ssl.weights.array_pickles import read_array_pickle
from clove_ssl.weights.checkpoint_files import read_content
from clove_ssl.weights.safetensors_file import FORMAT, content_hash


class Calls:
    """Calls a function with one argument when it is unpickled."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.reduced = (function, args)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.reduced


def mark_maker(mark: Path) -> dict[str, Any]:
    """Payloads that would each leave ``mark`` behind, in different places of a checkpoint."""
    makes = Calls(os.mkdir, str(mark))
    return {
        "as the whole file": makes,
        "as a weight": {"model": {"conv1.weight": makes}},
        "beside the weights": {"model": {"conv1.weight": np.zeros(2)}, "opt": makes},
        "as a key": {"model": {makes: 1}},
        "inside options": {"opt": argparse.Namespace(path=makes)},
        "through eval": {"model": Calls(eval, f"__import__('os').mkdir({str(mark)!r})")},
        "through getattr": {"model": Calls(getattr, Calls(__import__, "os"), "mkdir")},
    }


PLACES = [*mark_maker(Path("unused"))]


def write_pickle(value: Any, path: Path) -> None:
    path.write_bytes(pickle.dumps(value, protocol=2))


def write_old_torch(value: Any, path: Path) -> None:
    torch.save(value, path, _use_new_zipfile_serialization=False)


WRITERS: dict[str, Callable[[Any, Path], None]] = {
    "pickle": write_pickle,
    "torch": lambda value, path: torch.save(value, path),
    "old torch": write_old_torch,
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", WRITERS)
def test_code_in_a_file_never_runs(kind: str, place: str, tmp_path: Path) -> None:
    mark = tmp_path / "pwned"
    path = tmp_path / "weights.pkl"
    WRITERS[kind](mark_maker(mark)[place], path)
    with pytest.raises(UserError, match="can run code"):
        read_content(path)
    assert not mark.exists()
    if place != "through getattr":
        open_carelessly(kind, path)
        assert mark.exists()  # the trap itself works


def open_carelessly(kind: str, path: Path) -> None:
    if kind == "pickle":
        pickle.loads(path.read_bytes())
    else:
        torch.load(path, weights_only=False)


def opcodes(*parts: bytes) -> bytes:
    return b"\x80\x02" + b"".join(parts) + b"."


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


HAND_MADE = {
    "inst": opcodes(b"(", text("x"), b"ios\nmkdir\n"),
    "obj": opcodes(b"(cos\nmkdir\n", text("x"), b"o"),
    "newobj": opcodes(b"cbuiltins\nobject\n)\x81"),
    "stack global": b"\x80\x04" + text("os") + text("mkdir") + b"\x93.",
    "extension": opcodes(b"\x82\x01"),
    "persistent id": opcodes(text("x"), b"Q"),
    "an attribute of a stand-in": opcodes(b"cnumpy\ndtype\n}", text("__call__"), b"Nsb"),
    "an instance of a stand-in": opcodes(b"cnumpy\nndarray\n", b")", b"\x81"),
    "a call of ndarray": opcodes(b"cnumpy\nndarray\n(J", struct.pack("<i", 2**30), b"tR"),
    "a dotted name": opcodes(b"cnumpy\ncore.multiarray.os\n"),
}


@pytest.mark.parametrize("name", HAND_MADE)
def test_pickles_made_by_hand_are_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "weights.pkl"
    path.write_bytes(HAND_MADE[name])
    with pytest.raises(UserError, match=r"can run code|cannot be read"):
        read_content(path)


def array_pickle(shape: tuple[int, ...], code: str, content: bytes) -> bytes:
    """An array as NumPy pickles it, with any shape, type and bytes."""
    stream = io.BytesIO()
    stream.write(b"\x80\x02}" + text("model") + b"}" + text("w"))
    stream.write(b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R")
    stream.write(b"(K\x01(" + b"".join(b"L%dL\n" % side for side in shape) + b"t")
    stream.write(b"cnumpy\ndtype\n" + text(code) + b"K\x00K\x01\x87R")
    stream.write(b"(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89")
    stream.write(b"T" + struct.pack("<i", len(content)) + content + b"tbss.")
    return stream.getvalue()


def test_a_pickle_of_python_2_is_read() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3) - 300
    read = read_array_pickle(array_pickle((2, 3), "f4", values.tobytes()))
    assert np.array_equal(read["model"]["w"].resolve(), values)


@pytest.mark.parametrize(
    ("shape", "code", "content"),
    [
        ((2**40,), "f4", b"1234"),
        ((3, 3), "f4", b"1234"),
        ((-1,), "f4", b"1234"),
        ((1,), "O8", b"12345678"),
        ((1,), "V4", b"1234"),
        ((1,), "f4,f4", b"12345678"),
    ],
    ids=str,
)
def test_arrays_that_are_not_what_they_say_are_refused(
    shape: tuple[int, ...], code: str, content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "weights.pkl"
    path.write_bytes(array_pickle(shape, code, content))
    with pytest.raises(UserError, match=r"weights\.pkl (cannot be read|was not loaded)"):
        read_content(path)


def test_plain_options_and_arrays_beside_the_weights_are_no_obstacle(tmp_path: Path) -> None:
    options = argparse.Namespace(lr=1.0, out=PurePosixPath("a"), nested=argparse.Namespace(b=[1]))
    checkpoint = {"state_dict": {"w": torch.ones(2)}, "opt": options, "best": np.float64(0.5)}
    torch.save(checkpoint | {"rates": np.arange(3)}, tmp_path / "a.pth")
    content = read_content(tmp_path / "a.pth")
    assert torch.equal(content.states["state_dict"]["w"], torch.ones(2))


def test_big_endian_and_column_major_arrays_are_turned(tmp_path: Path) -> None:
    values = np.arange(6, dtype=">f4").reshape(2, 3)
    write_pickle({"model": {"w": np.asfortranarray(values)}}, tmp_path / "a.pkl")
    read = read_content(tmp_path / "a.pkl").states["model"]["w"]
    assert torch.equal(read, torch.arange(6.0).reshape(2, 3))


def truncated(path: Path) -> None:
    torch.save({"conv1.weight": torch.zeros(64, 3, 7, 7)}, path)
    os.truncate(path, 20_000)


def truncated_pickle(path: Path) -> None:
    write_pickle({"model": {"conv1_w": np.zeros((64, 3, 7, 7))}}, path)
    os.truncate(path, 20_000)


def truncated_safetensors(path: Path) -> None:
    save_file({"conv1.weight": torch.zeros(64, 3, 7, 7)}, path)
    os.truncate(path, 20_000)


def compressed(path: Path) -> None:
    torch.save({"conv1.weight": torch.zeros(64, 3, 7, 7)}, path)
    packed = path.with_suffix(".zip")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.namelist():
            new.writestr(entry, old.read(entry))
    packed.replace(path)


def huge_header(path: Path) -> None:
    path.write_bytes(struct.pack("<Q", 2**60) + b'{"a":1}')


def changed_metadata(path: Path, **metadata: str) -> None:
    """A file that claims to be ours, with the right hash, and hides what it is."""
    state = {"conv1.weight": torch.zeros(2)}
    own = {"format": FORMAT, "sha256": content_hash(state)}
    save_file(state, path, metadata=own | metadata)


def archive_of(path: Path, name: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, b"")


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "0 bytes": (lambda path: path.write_bytes(b""), "is empty"),
    "one byte": (lambda path: path.write_bytes(b"\x80"), "cannot be read"),
    "a web page": (lambda path: path.write_text("<html>404</html>"), "begins like no kind"),
    "no tensors": (lambda path: torch.save({}, path), "holds no tensors"),
    "a number": (lambda path: torch.save(3, path), "holds no tensors"),
    "truncated": (truncated, "its end is missing"),
    "sparse": (
        lambda path: torch.save({"conv1.weight": torch.zeros(2, 2).to_sparse()}, path),
        "1 tensors that are sparse",
    ),
    "a whole module": (
        lambda path: torch.save(torch.nn.Linear(2, 2), path),
        "can run code (it asks for torch.nn.modules.linear.Linear). If you trust",
    ),
    "no network": (changed_metadata, "not which network it holds"),
    "no stage": (
        lambda path: changed_metadata(
            path, architecture="resnet18", stage="c9", output_stride="32"
        ),
        "stage c9",
    ),
    "no version": (
        lambda path: changed_metadata(path, format_version="one", output_stride="x"),
        "output stride x",
    ),
    "a truncated pickle": (truncated_pickle, "cannot be read"),
    "truncated safetensors": (truncated_safetensors, "cannot be read as safetensors"),
    "an endless header": (huge_header, "cannot be read as safetensors"),
    "a compressed archive": (compressed, "compressed archive"),
    "arrays": (lambda path: archive_of(path, "conv1.weight.npy"), "archive of NumPy arrays"),
    "TorchScript": (lambda path: archive_of(path, "net/constants.pkl"), "TorchScript program"),
    "another architecture": (
        lambda path: torch.save({"blocks.0.attn.qkv.weight": torch.zeros(3)}, path),
        "no backbone where a known program",
    ),
    "one layer": (lambda path: torch.save({"conv1.weight": torch.zeros(2)}, path), "0 of 100"),
    "code": (lambda path: write_pickle(Calls(os.mkdir, str(path) + "x"), path), "can run code"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_gives_exit_code_2_and_one_message(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "weights.pth", tmp_path / "backbone.safetensors"
    make, message = BROKEN[name]
    make(path)
    assert cli.main(["import", str(path), "--out", str(out)]) == 2
    written = capsys.readouterr()
    assert message in written.err
    assert written.err.startswith(f"clove: {path}")
    assert written.err.count("\n") == 1
    assert written.out == ""
    assert not out.exists()


def test_a_missing_file_and_a_taken_name_are_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "taken.safetensors"
    taken.write_bytes(b"mine")
    for out, message in (("new.safetensors", "does not exist"), ("new.pth", "new.safetensors")):
        assert cli.main(["import", str(tmp_path / "none"), "--out", str(tmp_path / out)]) == 2
        assert message in capsys.readouterr().err
    assert cli.main(["import", str(taken), "--out", str(taken)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert taken.read_bytes() == b"mine"


def test_shapes_beyond_all_reason_are_refused(tmp_path: Path) -> None:
    torch.save({"conv1.weight": torch.zeros(()).expand(2**20, 2**20)}, tmp_path / "a.pth")
    with pytest.raises(UserError, match="claims 1 tensors with 1,099,511,627,776 numbers"):
        read_content(tmp_path / "a.pth")
    torch.save({"conv1.weight": torch.zeros((1,) * 9)}, tmp_path / "b.pth")
    with pytest.raises(UserError, match="up to 9 dimensions"):
        read_content(tmp_path / "b.pth")


def test_a_file_that_is_too_large_is_not_even_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_files, "MAX_BYTES", 1000)
    (tmp_path / "a.pth").write_bytes(b"PK" + bytes(2000))
    with pytest.raises(UserError, match="Save its weights alone"):
        read_content(tmp_path / "a.pth")
