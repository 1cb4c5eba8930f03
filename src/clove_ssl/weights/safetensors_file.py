"""``backbone.safetensors``: the weights a user takes away, and what they are.

The tensors have the names of the network's own library, floats are fp32, and
nothing but the backbone is inside. The metadata say how to rebuild the network
and hold a SHA-256 of the tensors, so that a damaged file is noticed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from clove_ssl import __version__
from clove_ssl.atomic import cause, replacing
from clove_ssl.backbones.build import Backbone
from clove_ssl.backbones.last_norm import size_last_stage
from clove_ssl.errors import UserError, escaped
from clove_ssl.views.batch import IMAGENET_MEAN, IMAGENET_STD

FORMAT = "clove-ssl backbone"
FORMAT_VERSION = 1

State = dict[str, Tensor]


def save_backbone(backbone: Backbone, path: Path, metadata: Mapping[str, str]) -> None:
    """Write the backbone to ``path``, all or nothing.

    ``metadata`` is what only the caller knows, such as ``method`` and
    ``config_hash``; what the network itself can tell is added here.
    """
    # Weights that share memory cannot be written, and a user should not need to know of channels
    # last.
    state = portable_state(backbone.body)
    size_last_stage(backbone, state)
    own = _describe(backbone) | {"sha256": content_hash(state)}
    doubled = sorted(own.keys() & metadata.keys())
    if doubled:
        raise ValueError(f"metadata {doubled} are written by save_backbone itself")
    defaults = {"mean": json.dumps(IMAGENET_MEAN), "std": json.dumps(IMAGENET_STD)}
    told = {name: escaped(value) for name, value in (defaults | dict(metadata)).items()}
    write_bytes(path, to_bytes(state, told | own))


def to_bytes(state: State, metadata: Mapping[str, str]) -> bytes:
    """A file that has the same bytes whenever it has the same content.

    The library writes metadata in an order that changes from process to process.
    """
    data = save(state, dict(metadata))
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header["__metadata__"] = dict(sorted(metadata.items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # readers want tensors at a multiple of eight
    return b"".join((len(text).to_bytes(8, "little"), text, memoryview(data)[start:]))


def read_backbone_file(path: Path) -> tuple[State, dict[str, str]]:
    """Tensors and metadata of a safetensors file; our own files are verified.

    A file of another program has metadata without ``format_version``, or none.
    """
    try:
        path.open("rb").close()  # the library says of every file that it may not open: not there
        with _utf8_name(path) as name, safe_open(name, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            state: State = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"{path} cannot be read as safetensors ({_in_words(error)}). Expected a complete file, "
            "such as export/backbone.safetensors of a run; copy it again, or name another one."
        ) from None
    if metadata.get("format") == FORMAT:
        verify(path, state, metadata, newest=FORMAT_VERSION)
    return state, metadata


def _in_words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)


@contextmanager
def _utf8_name(path: Path) -> Iterator[str]:
    """A name of the file that is valid UTF-8, which its library asks for."""
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        with path.open("rb") as file:
            # The reader is written in Rust, whose names of files must be text.
            yield f"/dev/fd/{file.fileno()}"
    else:
        yield os.fspath(path)


def content_hash(state: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and values, whatever the order."""
    digest = hashlib.sha256()
    # Sorted: other programs write the same tensors in another order.
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def portable_state(network: nn.Module) -> State:
    """Tensors on the CPU that share no memory, floats as fp32."""
    return {
        name: tensor.detach()
        .to("cpu", torch.float32 if tensor.is_floating_point() else tensor.dtype)
        .clone(memory_format=torch.contiguous_format)
        for name, tensor in network.state_dict().items()
    }


def _describe(backbone: Backbone) -> dict[str, str]:
    return {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "library_version": __version__,
        "architecture": backbone.name,
        "stage": backbone.stage,
        "output_stride": str(backbone.output_stride),
    }


def verify(path: Path, state: State, metadata: Mapping[str, str], *, newest: int) -> None:
    """Refuse a file of ours that a later version wrote, or whose tensors are not those written."""
    version = metadata.get("format_version", "0")
    is_number = version.isdecimal() and len(version) < 10
    written_by = int(version) if is_number else 0  # what was tampered with fails below
    if written_by > newest:
        raise UserError(
            f"{path} has format version {written_by}, written by clove-ssl "
            f"{metadata.get('library_version')}; this one reads up to {newest}. "
            "Type: pip install --upgrade clove-ssl"
        )
    if content_hash(state) != metadata.get("sha256"):
        raise UserError(
            f"The tensors in {path} are not those that were written: their SHA-256 differs from "
            "the one in the file. Copy it again from where it was made."
        )


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file, all or nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(content)
    except OSError as error:
        raise UserError(
            f"{path} could not be written: {cause(error)}. Free some space or choose another "
            "place, then try again."
        ) from error
