"""Load pre-trained backbones: our own runs and files, and those of other programs.

Every tensor the network needs must be found with its shape, and nothing may be
left over but what is known to be no part of a backbone; a wrong prefix can
therefore not pass as a random initialisation. Files are read without running
any code they might contain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import torch
from torch import Tensor

from clove_ssl.backbones.build import Backbone, backbone_names, build_backbone, torchvision_body
from clove_ssl.backbones.checkpoint_files import read_tensors
from clove_ssl.backbones.layouts import (
    Layout,
    State,
    Stripped,
    recognise,
    strip,
    unknown_layout,
    unwrap,
)
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.errors import UserError
from clove_ssl.export.safetensors_file import FORMAT
from clove_ssl.runs.directory import RunDirectory

Shapes = dict[str, tuple[int, ...]]
_COUNTER = "num_batches_tracked"  # says how long batch norm has run; files of old programs lack it


@dataclass(frozen=True)
class LoadReport:
    """How a checkpoint and a network fitted together."""

    matched: int  # tensors that were loaded
    expected: int  # tensors the network has; counters of batches are not counted
    dropped: dict[str, int]  # tensors of the checkpoint that are no part of a backbone, by place
    layout: str  # whose names were recognised


def load_backbone(path_or_run: str | Path) -> Backbone:
    """A backbone with the weights of a run, an exported file or a released checkpoint.

    All its parameters can be trained. It gives the maps of all stages; its
    ``stage`` is the one it was pre-trained at, as far as the file tells.
    """
    path = _find_file(Path(path_or_run))
    state, metadata = read_tensors(path)
    config = _config_of(metadata) or _recognised_config(state, origin=str(path))
    backbone = build_backbone(config)
    load_into(backbone, state, origin=str(path))
    return backbone.requires_grad_(True)


def load_weights(backbone: Backbone, path_or_run: str | Path) -> LoadReport:
    """Put the weights of a run or file into a backbone that exists; refuse another network's."""
    path = _find_file(Path(path_or_run))
    state, metadata = read_tensors(path)
    architecture = metadata.get("architecture", backbone.name)
    if architecture != backbone.name:
        raise UserError(
            f"{path} holds a {architecture}, but the backbone is a {backbone.name}. "
            f"Type --backbone.name {architecture}, or choose another file."
        )
    return load_into(backbone, state, origin=str(path))


def load_into(backbone: Backbone, state: Mapping[str, Tensor], *, origin: str = "") -> LoadReport:
    """Put a state of any known layout into ``backbone``, completely or not at all."""
    origin = origin or "The state dict"
    expected = _shapes(backbone.body.state_dict())
    stripped, layout = _strip_checked(state, origin, own_names=expected)
    _check_fit(stripped.tensors, expected, name=backbone.name, origin=origin)
    counters = {
        name: tensor.new_zeros(())
        for name, tensor in backbone.body.state_dict().items()
        if name.endswith(_COUNTER)
    }
    backbone.body.load_state_dict(counters | stripped.tensors)
    return LoadReport(len(expected), len(expected), stripped.dropped, layout.method)


def _strip_checked(
    state: Mapping[str, Tensor], origin: str, *, own_names: Iterable[str] = ()
) -> tuple[Stripped, Layout]:
    unwrapped = unwrap(state)
    layout = recognise(unwrapped)
    if layout is None and own_names and all(name in unwrapped for name in own_names):
        layout = Layout("the network's own names", "")
    if layout is None:
        raise unknown_layout(unwrapped, origin)
    return strip(unwrapped, layout), layout


def _check_fit(state: State, expected: Shapes, *, name: str, origin: str) -> None:
    """Refuse a state unless it has exactly the tensors of the network."""
    found = _shapes(state)
    missing = sorted(expected.keys() - found.keys())
    extra = sorted(found.keys() - expected.keys())
    reshaped = sorted(key for key in expected.keys() & found.keys() if expected[key] != found[key])
    if not (missing or extra or reshaped):
        return
    fitting = len(expected) - len(missing) - len(reshaped)
    raise UserError(
        f"{origin} does not fit {name}: {fitting} of {len(expected)} tensors fit, "
        f"{_count('missing', missing)}, {_count('of another shape', reshaped)}, "
        f"{_count('unknown', extra)}. Nothing was loaded. Give a file of a {name}, or the "
        "network the file was made from."
    )


def _count(what: str, names: list[str]) -> str:
    return f"{len(names)} {what}" + (f" (such as {names[0]})" if names else "")


def _shapes(state: Mapping[str, Tensor]) -> Shapes:
    return {
        name: tuple(tensor.shape) for name, tensor in state.items() if not name.endswith(_COUNTER)
    }


def _config_of(metadata: Mapping[str, str]) -> BackboneConfig | None:
    """The network of a file of ours, from its metadata."""
    if metadata.get("format") != FORMAT:
        return None
    stage = cast(Literal["c2", "c3", "c4", "c5"], metadata["stage"])
    output_stride = cast(Literal[16, 32], int(metadata["output_stride"]))
    return BackboneConfig(name=metadata["architecture"], stage=stage, output_stride=output_stride)


def _recognised_config(state: State, *, origin: str) -> BackboneConfig:
    """The network of a file of another program, from the shapes of its tensors."""
    stripped, layout = _strip_checked(state, origin)
    found = _shapes(stripped.tensors)
    # RegNets cannot be laid out without memory, and no method has released one.
    family = "convnext" if "features.0.0.weight" in found else "resne"
    candidates = {name: _shapes_of(name) for name in backbone_names() if family in name}
    name = min(candidates, key=lambda name: len(candidates[name].items() ^ found.items()))
    _check_fit(stripped.tensors, candidates[name], name=name, origin=origin)
    return BackboneConfig(name=name, output_stride=layout.output_stride)


def _shapes_of(name: str) -> Shapes:
    with torch.device("meta"):  # shapes alone: no memory, no random numbers
        return _shapes(torchvision_body(BackboneConfig(name=name)).state_dict())


def _find_file(path: Path) -> Path:
    if path.is_file():
        return path
    if not path.exists():
        raise UserError(
            f"{path} does not exist. Give a run directory, a backbone.safetensors or a released "
            "checkpoint."
        )
    exported = RunDirectory(path).backbone
    if not exported.is_file():
        raise UserError(
            f"{path} has no export/backbone.safetensors: it is no run directory, or the run has "
            f"not finished. Type: clove resume {path}"
        )
    return exported
