"""``clove export RUN --to detectron2 --heads``: a whole detector under Detectron2's names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from clove_ssl.config.exporting import ExportConfig
from clove_ssl.console import Console
from clove_ssl.engine.finetuned import load_finetuned
from clove_ssl.errors import UserError, already_there
from clove_ssl.export.formats import FORMATS
from clove_ssl.export.named_files import write_arrays
from clove_ssl.export.safetensors_file import portable_state
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.tasks.detection_model import DetectionNetwork
from clove_ssl.tasks.models.densepose_detector import DensePoseDetector
from clove_ssl.tasks.models.densepose_names import densepose_name
from clove_ssl.tasks.models.detector import Detector
from clove_ssl.tasks.models.detectron2_names import detectron2_name
from clove_ssl.tasks.models.pixels import PIXEL_MEAN, PIXEL_STD


def export_detector(config: ExportConfig) -> Path:
    """Write the detector of a finished run for ``MODEL.WEIGHTS``; gives the path."""
    if config.to != "detectron2":
        raise UserError(
            f"--heads cannot go to {config.to}. Leave it out for the backbone, give --to "
            "detectron2, or take export/model.safetensors of the run as it is."
        )
    model = load_finetuned(config.source)
    if not isinstance(model.network, DetectionNetwork):
        raise UserError(
            f"{config.source} is no detector, and Detectron2 has no such network. Leave out "
            "--heads for its backbone."
        )
    _check_counterpart(model.network.detector)
    path = config.out or _beside(config.source)
    if config.out is not None and path.exists():
        raise already_there(path)
    weights = _named(model.network.detector)
    write_arrays(path, weights, by_endings=False)
    with Console() as console:
        console.say(f"Exported the detector of {config.source} to detectron2")
        console.choice("file", str(path), f"{len(weights)} arrays")
        mean, std = (" ".join(map(str, values)) for values in (PIXEL_MEAN, PIXEL_STD))
        console.choice("input", f"RGB, mean {mean}, std {std}")
        console.choice("classes", ", ".join(model.class_names[:8]))
    return path


def _check_counterpart(detector: Detector) -> None:
    """Refuse what Detectron2 would build otherwise and fill by half."""
    backbone = detector.features.backbone
    if detector.config.kind == "c4" and backbone.name in ("resnet18", "resnet34"):
        raise UserError(
            f"A C4 detector around a {backbone.name} cannot go to Detectron2, whose C4 heads have "
            "bottleneck blocks: most of their last stage would stay random. Leave out --heads "
            "for the backbone alone, or take a pyramid (coco-fpn) or a resnet50."
        )


def _beside(source: Path) -> Path:
    folder = RunDirectory(source).model.parent if source.is_dir() else source.parent
    return folder / f"model{FORMATS['detectron2'].suffix}"


def _named(detector: Detector) -> dict[str, NDArray[Any]]:
    """Arrays by Detectron2's names."""
    kind = detector.config.kind
    is_densepose = isinstance(detector, DensePoseDetector)
    return {
        densepose_name(name) if is_densepose else detectron2_name(name, kind): tensor.numpy()
        for name, tensor in portable_state(detector).items()
    }
