"""Load pre-trained backbones: our own runs and files, and those of other programs.

Every tensor the network needs must be found with its shape, and nothing may be
left over but what is known to be no part of a backbone; a wrong prefix can
therefore not pass as a random initialisation. Files are read without running
any code they might contain.

A complete timm network is fitted to its ``features_only`` form, which has no classifier, writes
some dots of names as underscores, and ends behind the chosen stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor

from clove_ssl.backbones.build import (
    CAFFE_SUFFIX,
    STAGES,
    TIMM_PREFIX,
    Backbone,
    backbone_names,
    build_backbone,
    import_timm,
    outlined,
)
from clove_ssl.backbones.last_norm import size_last_stage
from clove_ssl.config.bases import Branch
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.errors import UserError
from clove_ssl.weights.architectures import COUNTER, check_fit, find_network, fitting, shapes_of
from clove_ssl.weights.checkpoint_files import Content, read_content
from clove_ssl.weights.dialects import Stripped
from clove_ssl.weights.extraction import Extracted, Wanted, extract
from clove_ssl.weights.layouts import LICENCES, OWN, unknown_layout, unwrap
from clove_ssl.weights.origins import Origin, locate
from clove_ssl.weights.safetensors_file import FORMAT

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class LoadReport:
    """How a checkpoint and a network fitted together."""

    matched: int  # tensors that were loaded
    expected: int  # tensors the network has; counters of batches are not counted
    dropped: dict[str, int]  # tensors of the checkpoint that are no part of a backbone, by place
    layout: str  # whose names were recognised
    architecture: str = ""
    method: str = ""  # that made the weights, as far as the file tells
    branch: str = ""  # student or teacher, where the file holds both
    licence: str = ""
    notes: tuple[str, ...] = ()  # what was converted on the way


def load_backbone(
    path_or_run: str | Path, *, method: str = "", branch: Branch | None = None
) -> Backbone:
    """A backbone with the weights of a run, an exported file or a released checkpoint.

    All its parameters can be trained. It gives the maps of all stages; its
    ``stage`` is the one it was pre-trained at, as far as the file tells.

    Args:
        path_or_run: A run (its checkpoints, if it has not finished), or a file of any program.
        method: Whose file it is, where its names do not tell; see ``clove import --help``.
        branch: Student or teacher; by default what the authors hand out.
    """
    return read_backbone(path_or_run, method=method, branch=branch)[0]


def read_backbone(
    path_or_run: str | Path,
    *,
    method: str = "",
    branch: Branch | None = None,
    architecture: str = "",
) -> tuple[Backbone, LoadReport]:
    """Like :func:`load_backbone`, with a report; ``architecture`` where tensors do not tell."""
    origin = locate(Path(path_or_run))
    content = read_content(origin.path)
    extracted = _extract(content, origin, Wanted(method=method, branch=branch))
    config = _network(content, extracted, origin, architecture)
    backbone = build_backbone(config)
    report = _load(backbone, content, extracted, origin=str(origin.path))
    size_last_stage(backbone, backbone.body.state_dict())  # a checkpoint's is as it was trained
    return backbone.requires_grad_(True), report


def load_weights(
    backbone: Backbone, path_or_run: str | Path, *, partial: bool = False
) -> LoadReport:
    """Put the weights of a run or file into a backbone that exists; refuse another network's.

    With ``partial`` the tensors that fit are loaded, of which there must be one, and the others
    of the backbone stay as they are.
    """
    origin = locate(Path(path_or_run))
    content = read_content(origin.path)
    named = origin.network.name if origin.network else backbone.name
    architecture = content.metadata.get("architecture", named)
    known = _is_ours(content) or origin.network
    if architecture != backbone.name and known and not partial:
        raise UserError(
            f"{origin.path} holds a {architecture}, but the backbone is a {backbone.name}. "
            f"Type --backbone.name {architecture}, or choose another file."
        )
    extracted = _extract(content, origin, Wanted())
    return _load(backbone, content, extracted, origin=str(origin.path), partial=partial)


def _is_ours(content: Content) -> bool:
    return content.metadata.get("format") == FORMAT


def _extract(content: Content, origin: Origin, wanted: Wanted) -> Extracted | None:
    if _is_ours(content):
        return _own_file(content, wanted)
    return extract(content, replace(wanted, branch=wanted.branch or origin.branch))


def _own_file(content: Content, wanted: Wanted) -> Extracted:
    metadata = content.metadata
    branch = metadata.get("branch", "")
    if wanted.branch not in (None, branch):
        raise UserError(
            f"The file holds one backbone{(f', that of the {branch}' if branch else '')}; --branch "
            f"{wanted.branch} can be chosen in a checkpoint or run only. Leave it out."
        )
    return Extracted(
        content.states[""],
        title="clove-ssl backbone",
        method=metadata.get("method", ""),
        branch=branch,
        licence=metadata.get("licence", LICENCES[OWN]),
        own=True,
    )


def _network(
    content: Content, extracted: Extracted | None, origin: Origin, architecture: str
) -> BackboneConfig:
    """The network of a file: as the file, the run around it or the user says, or by its shapes."""
    known = _config_of(content.metadata, str(origin.path)) or origin.network
    if known is not None:
        if architecture not in ("", known.name):
            raise UserError(
                f"{origin.path} holds a {known.name}, not a {architecture}. Leave out "
                "--architecture."
            )
        return replace(known, weights=None)
    if architecture:
        return BackboneConfig(name=architecture)
    if origin.hint and not _is_torchvisions(origin.hint):
        return BackboneConfig(name=origin.hint)
    if extracted is None:
        raise _unknown(content, str(origin.path))
    name = find_network(extracted.tensors, origin=str(origin.path))
    if extracted.caffe and name + CAFFE_SUFFIX not in backbone_names():
        raise UserError(
            f"{origin.path} holds a {name} whose batch norms are folded; such files are read for "
            "ResNets as MSRA made them only. Give one with the statistics of its batch norms."
        )
    if extracted.caffe:
        name += CAFFE_SUFFIX
    return BackboneConfig(name=name, output_stride=extracted.output_stride)


def _is_torchvisions(network: str) -> bool:
    """Whether a network of timm is one of torchvision's under the same name.

    Others may have the same tensors and compute something else, such as resnetblur50.
    """
    return network.removeprefix(TIMM_PREFIX).partition(".")[0] in backbone_names()


def _config_of(metadata: Mapping[str, str], origin: str) -> BackboneConfig | None:
    """The network of a file of ours, from its metadata."""
    if metadata.get("format") != FORMAT:
        return None
    name, stage, stride = (metadata.get(key) for key in ("architecture", "stage", "output_stride"))
    if name is None or stage not in STAGES or stride not in ("16", "32"):
        raise UserError(
            f"{origin} says that it is from clove-ssl, but not which network it holds "
            f"(architecture {name}, stage {stage}, output stride {stride}). Somebody changed it; "
            "copy it again, or write it again: clove export RUN --to safetensors"
        )
    return BackboneConfig(
        name=name,
        stage=cast(Literal["c2", "c3", "c4", "c5"], stage),
        output_stride=cast(Literal[16, 32], int(stride)),
    )


def _load(
    backbone: Backbone,
    content: Content,
    extracted: Extracted | None,
    *,
    origin: str,
    partial: bool = False,
) -> LoadReport:
    if backbone.name.startswith(TIMM_PREFIX) and not (extracted and extracted.own):
        state = unwrap(next(iter(content.states.values())))
        fitted = fit_timm_state(state, backbone)
        extracted = Extracted(fitted.tensors, fitted.dropped, title="timm", method="timm")
    if extracted is None:
        raise _unknown(content, origin)
    if extracted.caffe != backbone.name.endswith(CAFFE_SUFFIX) and not extracted.own:
        raise _other_stride(backbone, extracted, origin)
    expected = shapes_of(backbone.body.state_dict())
    tensors = fitting(extracted.tensors, expected)
    if not (partial and tensors):
        check_fit(extracted.tensors, expected, name=backbone.name, origin=origin)
    _check_numbers(tensors, origin)
    counters = _counters(backbone, extracted.tensors, origin)
    backbone.body.load_state_dict(counters | tensors, strict=not partial)
    return LoadReport(
        matched=len(tensors),
        expected=len(expected),
        dropped=extracted.dropped,
        layout=extracted.title,
        architecture=backbone.name,
        method=extracted.method,
        branch=extracted.branch,
        licence=extracted.licence,
        notes=extracted.notes,
    )


def _counters(backbone: Backbone, found: Mapping[str, Tensor], origin: str) -> dict[str, Tensor]:
    """How many batches each norm has seen; 0 where the file does not tell."""
    names = [name for name in backbone.body.state_dict() if name.endswith(COUNTER)]
    counters = {name: found.get(name, torch.zeros(1, dtype=torch.int64)) for name in names}
    odd = [name for name, counter in counters.items() if counter.numel() != 1]
    if odd:
        raise UserError(
            f"{origin} holds {len(odd)} counters of batches that are no single numbers (such as "
            f"{odd[0]}, {tuple(counters[odd[0]].shape)}). Nothing was loaded. Copy it again, or "
            "leave them out: they are no weights."
        )
    return {name: counter.reshape(()) for name, counter in counters.items()}


def _check_numbers(tensors: Mapping[str, Tensor], origin: str) -> None:
    """Refuse weights that are no floats, or not finite."""
    whole = [name for name, tensor in tensors.items() if tensor.dtype not in FLOATS]
    if whole:
        raise UserError(
            f"{origin} holds {len(whole)} tensors of a type that is no weight (such as "
            f"{whole[0]}, {tensors[whole[0]].dtype}). Nothing was loaded. Save them as float32."
        )
    broken = [name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())]
    if broken:
        raise UserError(
            f"{origin} holds numbers that are not finite in {len(broken)} tensors (such as "
            f"{broken[0]}), so a network would give nothing but NaN. Nothing was loaded. Take a "
            "checkpoint from before the run broke."
        )


def _unknown(content: Content, origin: str) -> UserError:
    largest = max(content.states.values(), key=len)
    return unknown_layout(unwrap(largest), origin)


def _other_stride(backbone: Backbone, extracted: Extracted, origin: str) -> UserError:
    base = backbone.name.removesuffix(CAFFE_SUFFIX)
    right = base + CAFFE_SUFFIX if extracted.caffe else base
    return UserError(
        f"{origin} does not fit {backbone.name}: the tensors have the same shapes, but the network "
        f"({extracted.title}) strides in another convolution of its blocks, so features would be "
        f"wrong. Nothing was loaded. Type --backbone.name {right}."
    )


def fit_timm_state(state: Mapping[str, Tensor], backbone: Backbone) -> Stripped:
    """The tensors of the backbone under its own names; what belongs to no network stays in."""
    own = {_flat(name): name for name in backbone.body.state_dict()}
    complete = _complete_names(backbone.name)
    tensors: dict[str, Tensor] = {}
    dropped: Counter[str] = Counter()
    for name, tensor in state.items():
        if _flat(name) in own:
            tensors[own[_flat(name)]] = tensor
        elif name in complete:
            dropped[name.partition(".")[0]] += 1
        else:
            tensors[name] = tensor
    return Stripped(tensors, dict(dropped))


def _flat(name: str) -> str:
    return name.replace(".", "_")


def _complete_names(name: str) -> set[str]:
    timm: Any = import_timm()
    with outlined():
        return {*timm.create_model(name.removeprefix(TIMM_PREFIX)).state_dict()}
