"""Read the tensors of a checkpoint of any kind without running code from it.

The kind of a file is told by its first bytes, never by its name. Nothing is
believed about sizes before it is checked: a small file can claim to hold
terabytes.
"""

from __future__ import annotations

import pickle
import re
import struct
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clove_ssl.errors import UserError
from clove_ssl.weights.array_pickles import PickledArray, mapped, read_array_pickle, torch_stand_ins
from clove_ssl.weights.dialects import State
from clove_ssl.weights.layouts import unwrap
from clove_ssl.weights.safetensors_file import read_backbone_file
from clove_ssl.weights.torch_pickles import (
    NEWEST_PROTOCOL,
    NewerProtocol,
    check_archive_pickles,
    check_old_pickles,
)

MAX_BYTES = 64 * 2**30  # SetSim's masks make files of many gigabytes
MAX_TENSORS = 100_000
MAX_ELEMENTS = 2**34  # of all tensors together, as their shapes say
MAX_DIMENSIONS = 8

_WHERE_STATES_HIDE = ("state_dict", "model", "learner", "online_backbone", "blobs")
_BRANCHES = ("student", "teacher")  # DINO keeps a state of each
# The magic number, pickled: the protocol, from 4 on the length of what follows, and the number.
_OLD_TORCH = rb"\x80[\x02-\x05](\x95.{8})?\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19\."
_START = 24  # bytes, which are enough for it
_BROKEN = (
    RuntimeError,
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    OSError,
    AttributeError,
    MemoryError,
    OverflowError,
    AssertionError,
    struct.error,
    zipfile.BadZipFile,
)


@dataclass(frozen=True)
class Content:
    """What a file holds."""

    states: dict[str, State]  # candidates for the weights, by the key they stand under
    metadata: dict[str, str] = field(default_factory=dict)  # only files of ours have some
    author: str = ""  # whom the file names; DenseCL's bare backbones tell in no other way


def read_content(path: Path) -> Content:
    """All states of a file of any kind."""
    size = path.stat().st_size
    if size == 0:
        raise UserError(f"{path} is empty (0 bytes). Copy or download it again.")
    if size > MAX_BYTES:
        raise UserError(
            f"{path} has {size / 2**30:.0f} GiB; a checkpoint of a backbone has at most "
            f"{MAX_BYTES / 2**30:.0f}. Save its weights alone and load that file."
        )
    with path.open("rb") as file:
        start = file.read(_START)
    # Safetensors: eight bytes of length, then JSON. No other kind has a brace there.
    if start[8:9] == b"{":
        state, metadata = read_backbone_file(path)
        return Content({"": _checked(state, path)}, metadata)
    checkpoint = _read_pickled(path, start)
    states = _find_states(checkpoint)
    author = checkpoint.get("author") if isinstance(checkpoint, Mapping) else None
    return Content(
        {key: _checked(state, path) for key, state in states.items()},
        author=author if isinstance(author, str) else "",
    )


def _read_pickled(path: Path, start: bytes) -> Any:
    try:
        if start.startswith(b"PK"):
            _check_archive(path)
            return _load_with_torch(path, mmap=True)
        if re.match(_OLD_TORCH, start, re.DOTALL):
            check_old_pickles(path)
            return _load_with_torch(path, mmap=False)
        if start.startswith(b"\x80"):
            return _with_arrays(read_array_pickle(mapped(path)))
        raise ValueError("it begins like no kind of checkpoint")
    except NewerProtocol as protocol:
        raise UserError(
            f"{path} was written with pickle protocol {protocol}, and only {NEWEST_PROTOCOL} and "
            "older are read without running code. If you trust it, save it again with torch's "
            f"own: torch.save(torch.load({path.name!r}, weights_only=False), 'new.pth')"
        ) from None
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path} was not loaded, because it holds more than tensors and plain values, and "
            f"such a file can run code ({_reason(error)}). If you trust it, open it in the program "
            "it is from and save the weights alone: torch.save(model.state_dict(), 'new.pth')"
        ) from None
    except _BROKEN as error:
        raise UserError(
            f"{path} cannot be read: {_reason(error)}. It is damaged or no checkpoint at all; "
            "copy or download it again."
        ) from None


def _load_with_torch(path: Path, *, mmap: bool) -> Any:
    with torch.serialization.safe_globals(torch_stand_ins()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch warns of is refused below, or does no harm
        return _with_arrays(torch.load(path, map_location="cpu", weights_only=True, mmap=mmap))


def _check_archive(path: Path) -> None:
    """Torch stores without compression, so that a file cannot grow when it is read."""
    if not zipfile.is_zipfile(path):  # the list of entries stands at the end
        raise ValueError("its end is missing, as after an interrupted download")
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if any(entry.filename.endswith(".npy") for entry in entries):
            raise ValueError("it is an archive of NumPy arrays, which no known program writes")
        if any(entry.filename.endswith("constants.pkl") for entry in entries):
            raise ValueError("it is a TorchScript program; save its state_dict() instead")
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError("it is a compressed archive, which torch never writes")
        if sum(entry.file_size for entry in entries) > MAX_BYTES:
            raise ValueError("the entries of the archive are larger than any checkpoint")
        check_archive_pickles(archive)


def _with_arrays(value: Any) -> Any:
    """Replace the stand-ins of arrays, two levels deep, where states are."""
    if not isinstance(value, Mapping):
        return value
    # By identity, once: a small file may mention one array so often that copies fill the memory.
    made: dict[int, Any] = {}
    return {key: _without_stand_ins(inner, made) for key, inner in value.items()}


def _without_stand_ins(value: Any, made: dict[int, Any]) -> Any:
    if id(value) not in made:
        if isinstance(value, Mapping):
            made[id(value)] = {name: _tensor(each, made) for name, each in value.items()}
        else:
            made[id(value)] = _tensor(value, made)
    return made[id(value)]


def _tensor(value: Any, made: dict[int, Any]) -> Any:
    if not isinstance(value, PickledArray):
        return value
    if id(value) not in made:
        made[id(value)] = torch.from_numpy(value.resolve())
    return made[id(value)]


def _find_states(checkpoint: Any) -> dict[str, State]:
    """The state dicts of a checkpoint: those under the usual keys, and the checkpoint itself."""
    if not isinstance(checkpoint, Mapping):
        return {"": {}}
    # In this order, the most telling key first; the file as a whole comes last.
    inner = {key: checkpoint[key] for key in _WHERE_STATES_HIDE if key in checkpoint}
    branches = _joined_branches(checkpoint)
    if branches:
        inner["branches"] = branches
    places = {**inner, "": checkpoint}
    return {
        key: {str(name): each for name, each in value.items() if isinstance(each, Tensor)}
        for key, value in places.items()
        if isinstance(value, Mapping)
    }


def _joined_branches(checkpoint: Mapping[Any, Any]) -> dict[str, Any]:
    """The states of a student and a teacher as one, by names that tell them apart."""
    states = {key: checkpoint[key] for key in _BRANCHES if isinstance(checkpoint.get(key), Mapping)}
    return {
        f"{branch}.{name}": value
        for branch, state in states.items()
        for name, value in unwrap({str(key): value for key, value in state.items()}).items()
    }


def _checked(state: State, path: Path) -> State:
    elements = sum(tensor.numel() for tensor in state.values())
    deepest = max((tensor.ndim for tensor in state.values()), default=0)
    if len(state) > MAX_TENSORS or elements > MAX_ELEMENTS or deepest > MAX_DIMENSIONS:
        raise UserError(
            f"{path} claims {len(state):,} tensors with {elements:,} numbers and up to {deepest} "
            f"dimensions; a checkpoint has at most {MAX_TENSORS:,}, {MAX_ELEMENTS:,} and "
            f"{MAX_DIMENSIONS}. It is damaged or made to do harm; do not use it."
        )
    odd = [name for name, tensor in state.items() if not _is_plain(tensor)]
    if odd:
        raise UserError(
            f"{path} holds {len(odd)} tensors that are sparse, quantised, complex or without "
            f"values (such as {odd[0]}). Save it with plain ones: tensor.dequantize(), "
            "tensor.to_dense()"
        )
    return state


def _is_plain(tensor: Tensor) -> bool:
    odd = tensor.is_meta or tensor.is_quantized or tensor.is_complex()
    return tensor.layout is torch.strided and not odd


def _reason(error: BaseException) -> str:
    """The telling part of torch's long messages, without its advice to trust the file."""
    wanted = re.search(r"GLOBAL ([\w.]+)", str(error))
    if wanted:
        return f"it asks for {wanted[1]}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "GLOBAL" in line or "global" in line]
    return (telling or lines or [type(error).__name__])[0].rstrip(".")
