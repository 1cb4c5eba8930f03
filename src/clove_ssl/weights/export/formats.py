"""Every format by its name: how it is written, checked and used.

Where Detectron2 or MMDetection is installed, it opens what is made for it: it builds the network as
the lines of the model card do, loads the file, and gives its maps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from clove_ssl.atomic import checked_first
from clove_ssl.backbones.build import STAGES
from clove_ssl.errors import UserError
from clove_ssl.weights.config import FormatName
from clove_ssl.weights.export import graphs, hub_folder, named_files, transformers_folder
from clove_ssl.weights.export.exported import TOLERANCE, Exported, largest_difference
from clove_ssl.weights.export.usage import detectron2_settings, mmdetection_backbone
from clove_ssl.weights.load import load_backbone
from clove_ssl.weights.safetensors_file import save_backbone

Check = Callable[[Exported, Path], float]  # loads it again and gives the largest difference


@dataclass(frozen=True)
class Native:
    """A check by the very program that a format is for."""

    program: str
    module: str  # that must be there
    check: Check

    def is_there(self) -> bool:
        """Whether the program can be imported; one that cannot for any reason does not check."""
        try:
            import_module(self.module)
        except Exception:  # some stop with an assertion about the versions of others
            return False
        return True


@dataclass(frozen=True)
class Format:
    """One way to hand a backbone to another program."""

    suffix: str  # of the file; none for a folder
    write: Callable[[Exported, Path], None]
    check: Check
    checked_by: str  # the library that does
    is_graph: bool = False  # holds the network, not the weights alone
    native: Native | None = None  # takes the place of the check where it is installed

    def checker(self) -> tuple[str, Check]:
        """Who checks a file here, and how."""
        if self.native is not None and self.native.is_there():
            return self.native.program, self.native.check
        return self.checked_by, self.check


def _write_safetensors(exported: Exported, path: Path) -> None:
    save_backbone(exported.backbone, path, exported.metadata)


def _check_safetensors(exported: Exported, path: Path) -> float:
    return largest_difference(exported.backbone, load_backbone(path).eval())


def _check_with_detectron2(exported: Exported, path: Path) -> float:
    """Load the file with Detectron2's checkpointer and compare all maps."""
    config: Any = import_module("detectron2.config")
    settings = config.get_cfg()
    settings.merge_from_other_cfg(
        config.CfgNode(yaml.safe_load(detectron2_settings(exported, str(path))))
    )
    settings.MODEL.RESNETS.NORM = "BN"  # the same layer on one device
    names = ["res2", "res3", "res4", "res5"]
    settings.MODEL.RESNETS.OUT_FEATURES = names
    network = import_module("detectron2.modeling").build_backbone(settings)
    import_module("detectron2.checkpoint").DetectionCheckpointer(network).load(str(path))
    network.eval()
    return largest_difference(
        exported.backbone,
        lambda images: {
            stage: network(images)[name] for stage, name in zip(STAGES, names, strict=True)
        },
    )


def _check_with_mmdetection(exported: Exported, path: Path) -> float:
    """Load the file with MMDetection's initialisation and compare all maps."""
    import_module("mmdet.models")  # registers the networks
    options = mmdetection_backbone(exported, str(path)) | {"norm_cfg": {"type": "BN"}}
    network: Any = import_module("mmdet.registry").MODELS.build(options)
    network.init_weights()
    network.eval()
    return largest_difference(
        exported.backbone, lambda images: dict(zip(STAGES, network(images), strict=True))
    )


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
        ".detectron2.pkl",
        named_files.write_detectron2,
        named_files.check_by_reading,
        "clove-ssl",
        native=Native("Detectron2", "detectron2.modeling", _check_with_detectron2),
    ),
    "mmdetection": Format(
        ".mmdetection.pth",
        named_files.write_mmdetection,
        named_files.check_by_reading,
        "clove-ssl",
        native=Native("MMDetection", "mmdet.models", _check_with_mmdetection),
    ),
    "transformers": Format(
        "",
        transformers_folder.write_transformers,
        named_files.check_by_reading,
        "clove-ssl",
        native=Native("transformers", "transformers", transformers_folder.check_with_transformers),
    ),
    "onnx": Format(".onnx", graphs.write_onnx, graphs.check_onnx, "onnxruntime", is_graph=True),
    "torch-export": Format(
        ".pt2", graphs.write_torch_export, graphs.check_torch_export, "torch.export", is_graph=True
    ),
    "hub": Format("", hub_folder.write_hub, hub_folder.check_hub, "clove-ssl"),
}


def write_checked(exported: Exported, name: FormatName, path: Path) -> float:
    """Write a format, load it again and compare; what does not agree takes no place."""
    chosen = FORMATS[name]
    with checked_first(path) as new:
        chosen.write(exported, new)
        checked_by, check = chosen.checker()
        difference = check(exported, new)
        if not difference <= TOLERANCE:
            raise UserError(
                f"{path} was not written: features of {checked_by} differ by "
                f"{difference:.1e}, more than {TOLERANCE:.0e}. Try another version of "
                f"{checked_by}, or --to safetensors."
            )
    return difference
