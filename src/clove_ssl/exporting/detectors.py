"""``clove export RUN --heads``: a whole detector for Detectron2, MMDetection or torchvision."""

from __future__ import annotations

import json
import pprint
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml
from torch import Tensor

from clove_ssl.atomic import write_text
from clove_ssl.backbones.build import CAFFE_SUFFIX, STAGES, TIMM_PREFIX
from clove_ssl.console import Console
from clove_ssl.errors import UserError
from clove_ssl.exporting.detectron2_config import (
    EXTRA_NORM_MODULE,
    detectron2_config,
    needs_extra_norm,
)
from clove_ssl.exporting.mmdetection_config import mmdetection_config
from clove_ssl.exporting.sources import companion, place_of_model, writing
from clove_ssl.exporting.torchvision_detectors import say_usage, write_torchvision
from clove_ssl.finetuning.finetuned import FinetunedModel, load_finetuned
from clove_ssl.tasks.densepose.branch import densepose_name
from clove_ssl.tasks.densepose.detector import DensePoseDetector
from clove_ssl.tasks.detection.config import DetectionConfig
from clove_ssl.tasks.detection.model import DetectionNetwork
from clove_ssl.tasks.detection.task import DetectionTask
from clove_ssl.tasks.rcnn.detector import Detector
from clove_ssl.tasks.rcnn.detectron2_names import detectron2_name
from clove_ssl.tasks.rcnn.mmdetection_names import mmdetection_name
from clove_ssl.tasks.rcnn.pixels import PIXEL_MEAN, PIXEL_STD
from clove_ssl.weights.architectures import COUNTER
from clove_ssl.weights.config import ExportConfig
from clove_ssl.weights.export.named_files import torch_bytes, write_arrays
from clove_ssl.weights.safetensors_file import portable_state, write_bytes


@dataclass(frozen=True)
class _Exported:
    """A detector on its way out."""

    model: FinetunedModel
    detector: Detector
    task: DetectionConfig
    path: Path  # of the weights

    @property
    def network(self) -> str:
        return self.detector.backbone.name


def export_detector(config: ExportConfig) -> Path:
    """Write the detector of a finished run and the config that builds it; gives the path."""
    if config.to not in _WRITERS:
        raise UserError(
            f"--heads cannot go to {config.to}. Leave it out for the backbone, give --to "
            "onnx, torch-export, detectron2, mmdetection or torchvision, or take "
            "export/model.safetensors of the run as it is."
        )
    model = load_finetuned(config.source)
    if not isinstance(model.network, DetectionNetwork):
        raise UserError(
            f"{config.source} is no detector, and {config.to} has no such network. Leave out "
            "--heads for its backbone."
        )
    path = place_of_model(config)
    assert isinstance(model.task, DetectionTask)
    exported = _Exported(model, model.network.detector, model.task.config, path)
    _check_network(exported, config.to)
    with (
        writing(path),
        Console().working(f"Exporting the detector to {config.to}, and checking it"),
    ):
        written = _WRITERS[config.to](exported)
    with Console() as console:
        console.say(f"Exported the detector of {config.source} to {config.to}")
        for what, where in written.items():
            console.choice(what, str(where))
        mean, std = (" ".join(map(str, values)) for values in (PIXEL_MEAN, PIXEL_STD))
        console.choice("input", f"RGB, mean {mean}, std {std}")
        console.choice("classes", ", ".join(model.class_names[:8]))
        if "program" in written:
            say_usage(written["program"], console)
    return path


def _check_network(exported: _Exported, target: str) -> None:
    """Refuse a backbone that the other program does not have."""
    name = exported.network
    known = "resne" in name and not name.startswith(TIMM_PREFIX) and CAFFE_SUFFIX not in name
    if not known or (target == "mmdetection" and name.startswith("wide_")):
        raise UserError(
            f"A detector around a {name} cannot go to {target}, which has no such network. Take "
            "export/model.safetensors of the run as it is, or a backbone such as resnet50."
        )


def _write_detectron2(exported: _Exported) -> dict[str, Path]:
    """Arrays for ``MODEL.WEIGHTS``, the config, and the heads that Detectron2 does not bring."""
    detector, path = exported.detector, exported.path
    if detector.config.kind == "c4" and exported.network in ("resnet18", "resnet34"):
        raise UserError(
            f"A C4 detector around a {exported.network} cannot go to Detectron2, whose C4 heads "
            "have bottleneck blocks: most of their last stage would stay random. Leave out --heads "
            "for the backbone alone, or take a pyramid (coco-fpn) or a resnet50."
        )
    settings = detectron2_config(
        exported.task,
        exported.network,
        classes=len(exported.model.class_names),
        keypoints=len(exported.model.keypoint_names),
        weights=path.name,
    )
    written = {"file": path, "config": companion(path, f"{path.stem}.yaml")}
    arrays = {name: tensor.numpy() for name, tensor in _by_detectron2_names(detector).items()}
    write_arrays(path, arrays, by_endings=False)
    write_text(written["config"], _as_yaml(settings, exported))
    if needs_extra_norm(detector.config):
        written["heads"] = path.with_name("res5_extra_norm.py")  # the same for all detectors
        write_text(written["heads"], EXTRA_NORM_MODULE)
    return written


def _by_detectron2_names(detector: Detector) -> dict[str, Tensor]:
    kind = detector.config.kind
    is_densepose = isinstance(detector, DensePoseDetector)
    return {
        densepose_name(name) if is_densepose else detectron2_name(name, kind): tensor
        for name, tensor in portable_state(detector).items()
    }


def _as_yaml(settings: dict[str, object], exported: _Exported) -> str:
    notes = [f"Detectron2's config of {exported.path.name}, written by clove-ssl."]
    if needs_extra_norm(exported.detector.config):
        notes.append("Its heads are in res5_extra_norm.py: import that before building the model.")
    if isinstance(exported.detector, DensePoseDetector):
        notes.append("It needs add_densepose_config of Detectron2's DensePose project.")
    notes.append("Classes in order: " + json.dumps(exported.model.class_names))
    head = "".join(f"# {line}\n" for line in notes)
    return head + yaml.safe_dump(settings, sort_keys=False, width=100)


def _write_mmdetection(exported: _Exported) -> dict[str, Path]:
    """A checkpoint for ``load_from`` and the config of the model."""
    detector, path = exported.detector, exported.path
    is_densepose = isinstance(detector, DensePoseDetector)
    if detector.config.kind == "c4" or detector.config.keypoints or is_densepose:
        raise UserError(
            "MMDetection has no such detector: of ours it knows those with a pyramid, boxes and "
            "masks. Leave out --heads for the backbone alone, or give --to detectron2."
        )
    backbone = detector.backbone
    config = mmdetection_config(
        exported.task,
        exported.network,
        channels=[backbone.channels[stage] for stage in STAGES],
        classes=len(exported.model.class_names),
        weights=path.name,
    )
    names = exported.model.class_names
    written = {"file": path, "config": companion(path, f"{path.stem}.py")}
    content = {"meta": {"dataset_meta": {"classes": names}}, "state_dict": _by_mm_names(detector)}
    write_bytes(path, torch_bytes(content))
    lines = [f"# MMDetection's config of {path.name}, written by clove-ssl."]
    lines += [
        f"{name} = {pprint.pformat(value, width=96, sort_dicts=False)}"
        for name, value in (config | {"metainfo": {"classes": names}}).items()
    ]
    write_text(written["config"], "\n".join(lines) + "\n")
    return written


def _by_mm_names(detector: Detector) -> dict[str, Tensor]:
    """The state by MMDetection's names, whose fixed norms count batches as well."""
    state = {mmdetection_name(name): tensor for name, tensor in portable_state(detector).items()}
    counters = {
        name.replace("running_mean", COUNTER): tensor.new_zeros((), dtype=torch.int64)
        for name, tensor in state.items()
        if name.endswith("running_mean")
    }
    return counters | state


def _write_torchvision(exported: _Exported) -> dict[str, Path]:
    return write_torchvision(exported.model, exported.detector, exported.task, exported.path)


_WRITERS: dict[str, Callable[[_Exported], dict[str, Path]]] = {
    "detectron2": _write_detectron2,
    "mmdetection": _write_mmdetection,
    "torchvision": _write_torchvision,
}
WHOLE_DETECTORS = tuple(_WRITERS)
"""Formats that take a detector with its heads."""
