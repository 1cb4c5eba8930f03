"""What ``clove import`` and ``clove export`` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

FormatName = Literal[
    "safetensors",
    "torchvision",
    "timm",
    "detectron2",
    "mmdetection",
    "transformers",
    "onnx",
    "torch-export",
    "hub",
]
FORMATS: dict[FormatName, str] = {
    "safetensors": "weights alone, under the names of the network's library; clove reads it back",
    "torchvision": "a .pth for a torchvision network without classifier",
    "timm": "a .safetensors for a timm network in its features_only form",
    "detectron2": "a .pkl with Detectron2's names, for MODEL.WEIGHTS",
    "mmdetection": "a .pth for init_cfg of MMDetection and MMSegmentation",
    "transformers": "a folder for ResNetBackbone.from_pretrained of transformers",
    "onnx": "a graph for any batch and image size; of a fine-tuning run with heads (extra `onnx`)",
    "torch-export": "a .pt2 graph of torch.export; contents as for onnx",
    "hub": "a folder in the style of Hugging Face, with config and card; nothing is uploaded",
}


@dataclass(frozen=True, kw_only=True)
class ImportConfig:
    """Turn a checkpoint of any known program into a backbone.safetensors."""

    file: Annotated[Path, tyro.conf.Positional]
    """A checkpoint, a backbone file, a run (finished or not) or one of its checkpoints."""
    out: Path
    """The new file, ending in .safetensors."""
    method: str = ""
    """The program that wrote the file, if the names of its tensors do not show it: byol, clove,
    clove-ssl, cp2, densecl, detco, detectron2, dino, mmdetection, moco, msra, pixpro, resim,
    setsim, slotcon, swav, timm, torchvision, transformers or vicregl."""
    branch: Literal["student", "teacher"] | None = None
    """The branch to take; by default the one that the method's authors use."""
    architecture: str = ""
    """The network, if the tensors do not show it: ``timm:NAME`` or a RegNet."""


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """Write a backbone for another program, and check it by loading it there."""

    source: Annotated[Path, tyro.conf.Positional]
    """A run (finished or not), or any file that ``clove import`` reads."""
    to: FormatName
    """Format to write; ``clove list formats`` explains them."""
    out: Path | None = None
    """The new file or folder; by default inside export/ of the run, or beside the file."""
    branch: Literal["student", "teacher"] | None = None
    """The branch of a run; by default the one in its config."""
    projector: bool = False
    """Also export the heads of pre-training: as a second file (safetensors, hub), or as the
    outputs of the graph (onnx, torch-export)."""
    heads: bool = False
    """The whole detector of a fine-tuning run instead of its backbone, with the config or program
    that builds it (detectron2, mmdetection, torchvision; our own file of it is
    export/model.safetensors). Graphs (onnx, torch-export) of a fine-tuning run always hold the
    whole model."""
    backbone_only: bool = False
    """The backbone of a fine-tuning run without its heads (onnx, torch-export)."""
    stage: Literal["all", "c2", "c3", "c4", "c5"] = "all"
    """Feature maps that a graph returns (onnx, torch-export)."""
    licence: str = ""
    """Licence of the weights, for the model card."""
