"""The heads that fine-tuning starts from: those of a whole detector of another program, or ours.

Each tensor is looked for under the name that the program gives it. What is there with the same
shape is taken; everything else starts afresh, and both are told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from clove_ssl.errors import UserError
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.tasks.base import TaskModel
from clove_ssl.tasks.densepose.branch import densepose_name
from clove_ssl.tasks.densepose.detector import DensePoseDetector
from clove_ssl.tasks.detection.model import DetectionNetwork
from clove_ssl.tasks.rcnn.detector import Detector
from clove_ssl.tasks.rcnn.detectron2_names import detectron2_name
from clove_ssl.tasks.rcnn.mmdetection_names import mmdetection_name
from clove_ssl.tasks.rcnn.torchvision_names import heads_from_torchvision, torchvision_name
from clove_ssl.weights.checkpoint_files import read_content
from clove_ssl.weights.layouts import unwrap

_BACKBONE = "features.backbone."
_SHOWN = 4  # names of a kind in a line

Name = Callable[[str], str]


@dataclass(frozen=True)
class _Program:
    """How a program's detectors are recognised, and what is no head in them."""

    title: str
    marks: tuple[str, ...]  # some name begins with one of these
    heads: tuple[str, ...]  # all heads begin with one of these
    backbone: tuple[str, ...]  # but these are parts of the backbone


_PROGRAMS = (
    _Program("clove-ssl", ("detector.proposer.",), ("detector.",), (f"detector.{_BACKBONE}",)),
    _Program(
        "torchvision",
        ("rpn.head.",),
        ("rpn.head.", "roi_heads.", "backbone.fpn."),
        ("backbone.body.",),
    ),
    _Program(
        "Detectron2",
        ("proposal_generator.", "roi_heads."),
        ("proposal_generator.rpn_head.", "roi_heads.", "backbone.fpn_"),
        tuple(f"roi_heads.res5.{block}." for block in range(3)),
    ),
    _Program(
        "MMDetection",
        ("rpn_head.", "roi_head."),
        ("rpn_head.", "roi_head.", "neck."),
        ("roi_head.shared_head.",),
    ),
)


@dataclass(frozen=True)
class HeadsReport:
    """How the heads of a file and those of a detector fitted together."""

    origin: str
    program: str
    fitted: tuple[str, ...]  # our names
    missing: tuple[str, ...]  # ours that the file does not have
    reshaped: tuple[str, ...]  # ours that it has in another shape, with both shapes
    unused: tuple[str, ...]  # theirs that ours have no place for

    def describe(self) -> str:
        """One line for people."""
        total = len(self.fitted) + len(self.missing) + len(self.reshaped)
        parts = [f"{len(self.fitted)} of {total} tensors from {self.origin} ({self.program})"]
        kinds = {
            "newly initialised, different shape": self.reshaped,
            "newly initialised, not in the file": self.missing,
            "in the file, but not used": self.unused,
        }
        parts += [f"{what}: {_listed(names)}" for what, names in kinds.items() if names]
        return "; ".join(parts)


def load_heads(model: TaskModel, path_or_run: str | Path) -> HeadsReport:
    """Put the heads of a detector into ``model`` as far as they fit; at least one must."""
    origin = _locate(Path(path_or_run))
    if not isinstance(model, DetectionNetwork):
        raise UserError("--heads is for detectors; this task has another model. Leave it out.")
    program, theirs = _read(origin)
    name_there = _names(program, model.detector)
    own = model.detector.state_dict()
    mine = {name: name_there(name) for name in own if not name.startswith(_BACKBONE)}
    report = _compare(own, theirs, mine, program, str(origin))
    if not report.fitted:
        raise UserError(
            f"No tensor of the heads in {origin} ({program.title}) fits this detector. Leave out "
            "--heads, or choose a task with the same kind of heads."
        )
    with torch.no_grad():
        for name in report.fitted:
            own[name].copy_(theirs[mine[name]])
    return report


def _locate(path: Path) -> Path:
    model = RunDirectory(path).model
    return model if path.is_dir() and model.is_file() else path


def _read(path: Path) -> tuple[_Program, dict[str, Tensor]]:
    """The program that wrote a detector, and its tensors."""
    if not path.is_file():
        raise UserError(
            f"{path} holds no detector. For --heads give a checkpoint of Detectron2, MMDetection "
            "or torchvision, or a finished run of clove finetune."
        )
    for state in read_content(path).states.values():
        tensors = unwrap(state)
        for program in _PROGRAMS:
            if any(name.startswith(program.marks) for name in tensors):
                is_torchvision = program.title == "torchvision"
                return program, heads_from_torchvision(tensors) if is_torchvision else tensors
    raise UserError(
        f"{path} holds no heads of a detector of Detectron2, MMDetection, torchvision or "
        "clove-ssl. Leave out --heads to start from its backbone alone."
    )


def _names(program: _Program, detector: Detector) -> Name:
    """What a program calls the entries of a detector's state dict; empty where it has no name."""

    def name_there(name: str) -> str:
        if program.title == "clove-ssl":
            return f"detector.{name}"
        try:
            if program.title == "MMDetection":
                return mmdetection_name(name)
            if program.title == "torchvision":
                return torchvision_name(name, detector.config.box)
            if isinstance(detector, DensePoseDetector):
                return densepose_name(name)
            return detectron2_name(name, detector.config.kind)
        except UserError:
            return ""

    return name_there


def _compare(
    own: Mapping[str, Tensor],
    theirs: Mapping[str, Tensor],
    names: Mapping[str, str],  # ours to theirs, heads alone
    program: _Program,
    origin: str,
) -> HeadsReport:
    missing = [name for name, there in names.items() if there not in theirs]
    shared = {name: there for name, there in names.items() if there in theirs}
    fitted = [name for name, there in shared.items() if own[name].shape == theirs[there].shape]
    reshaped = [
        f"{name} {_shape(theirs[there])} for {_shape(own[name])}"
        for name, there in shared.items()
        if name not in set(fitted)
    ]
    used = set(names.values())
    unused = [
        name
        for name in theirs
        if name.startswith(program.heads)
        and not name.startswith(program.backbone)
        and name not in used
    ]
    counted = [name for name in missing if not name.endswith("num_batches_tracked")]
    return HeadsReport(
        origin, program.title, tuple(fitted), tuple(counted), tuple(reshaped), tuple(unused)
    )


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "one number"


def _listed(names: tuple[str, ...]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
