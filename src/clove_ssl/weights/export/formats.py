"""Every format by its name: how it is written, checked and used."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clove_ssl.errors import UserError
from clove_ssl.weights.config import FormatName
from clove_ssl.weights.export import graphs, hub_folder, named_files
from clove_ssl.weights.export.exported import TOLERANCE, Exported, largest_difference
from clove_ssl.weights.load import load_backbone
from clove_ssl.weights.safetensors_file import save_backbone


@dataclass(frozen=True)
class Format:
    """One way to hand a backbone to another program."""

    suffix: str  # of the file; none for a folder
    write: Callable[[Exported, Path], None]
    check: Callable[[Exported, Path], float]  # loads it again and gives the largest difference
    checked_by: str  # the library that does
    is_graph: bool = False  # holds the network, not the weights alone


def _write_safetensors(exported: Exported, path: Path) -> None:
    save_backbone(exported.backbone, path, exported.metadata)


def _check_safetensors(exported: Exported, path: Path) -> float:
    return largest_difference(exported.backbone, load_backbone(path).eval())


FORMATS: dict[FormatName, Format] = {
    "safetensors": Format(".safetensors", _write_safetensors, _check_safetensors, "clove-ssl"),
    "torchvision": Format(
        ".torchvision.pth",
        named_files.write_torchvision,
        named_files.check_torchvision,
        "torchvision",
    ),
    "timm": Format(".timm.safetensors", named_files.write_timm, named_files.check_timm, "timm"),
    "detectron2": Format(
        ".detectron2.pkl", named_files.write_detectron2, named_files.check_by_reading, "clove-ssl"
    ),
    "mmdetection": Format(
        ".mmdetection.pth", named_files.write_mmdetection, named_files.check_by_reading, "clove-ssl"
    ),
    "onnx": Format(".onnx", graphs.write_onnx, graphs.check_onnx, "onnxruntime", is_graph=True),
    "torch-export": Format(
        ".pt2", graphs.write_torch_export, graphs.check_torch_export, "torch.export", is_graph=True
    ),
    "hub": Format("", hub_folder.write_hub, hub_folder.check_hub, "clove-ssl"),
}


def write_checked(exported: Exported, name: FormatName, path: Path) -> float:
    """Write a format, load it again and compare; what does not agree is not left behind."""
    chosen = FORMATS[name]
    chosen.write(exported, path)
    difference = chosen.check(exported, path)
    if not difference <= TOLERANCE:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        raise UserError(
            f"{path} was removed again: features of {chosen.checked_by} differ by "
            f"{difference:.1e}, more than {TOLERANCE:.0e}. Try another version of "
            f"{chosen.checked_by}, or --to safetensors."
        )
    return difference
