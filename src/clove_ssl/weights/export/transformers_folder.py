"""A folder that ``ResNetBackbone.from_pretrained`` of transformers opens: weights and config."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

from clove_ssl.atomic import write_text
from clove_ssl.backbones.build import STAGES
from clove_ssl.errors import UserError
from clove_ssl.weights.export.exported import Exported, largest_difference, refuse
from clove_ssl.weights.origins import HUB_WEIGHTS
from clove_ssl.weights.safetensors_file import portable_state, to_bytes, write_bytes
from clove_ssl.weights.transformers_names import transformers_name

_DEPTHS = {
    "resnet18": (2, 2, 2, 2),
    "resnet34": (3, 4, 6, 3),
    "resnet50": (3, 4, 6, 3),
    "resnet101": (3, 4, 23, 3),
    "resnet152": (3, 8, 36, 3),
}
_BASIC = ("resnet18", "resnet34")
_MAPS = ("stage1", "stage2", "stage3", "stage4")


def suits_transformers(exported: Exported) -> bool:
    """Whether transformers has such a network."""
    is_known = exported.network in _DEPTHS and exported.is_resnet
    return is_known and exported.backbone.output_stride == 32


def write_transformers(exported: Exported, path: Path) -> None:
    """Write the weights under the names of transformers, and the config that builds the network."""
    if exported.network not in _DEPTHS or not exported.is_resnet:
        raise refuse(exported, "transformers", "Export to timm, onnx or safetensors instead.")
    if exported.backbone.output_stride == 16:
        raise UserError(
            "A backbone with output stride 16 cannot be exported to transformers, whose ResNets "
            "have no dilation. Export to torchvision, timm or onnx instead."
        )
    path.mkdir(parents=True, exist_ok=True)
    write_text(path / "config.json", json.dumps(_config(exported), indent=2) + "\n")
    state = portable_state(exported.backbone.body)
    named = {transformers_name(name): tensor for name, tensor in state.items()}
    write_bytes(path / HUB_WEIGHTS, to_bytes(named, {"format": "pt"} | dict(exported.metadata)))


def check_with_transformers(exported: Exported, path: Path) -> float:
    """Open the folder with transformers and compare all maps."""
    network = import_module("transformers").ResNetBackbone.from_pretrained(path).eval()
    return largest_difference(
        exported.backbone,
        lambda images: dict(zip(STAGES, network(images).feature_maps, strict=True)),
    )


def _config(exported: Exported) -> dict[str, Any]:
    """What transformers needs to build the same network."""
    return {
        "architectures": ["ResNetBackbone"],
        "model_type": "resnet",
        "num_channels": 3,
        "embedding_size": 64,
        "hidden_sizes": [exported.backbone.channels[stage] for stage in STAGES],
        "depths": list(_DEPTHS[exported.network]),
        "layer_type": "basic" if exported.network in _BASIC else "bottleneck",
        "hidden_act": "relu",
        "downsample_in_first_stage": False,
        "downsample_in_bottleneck": False,
        "stage_names": ["stem", *_MAPS],
        "out_features": list(_MAPS),
        "out_indices": [1, 2, 3, 4],
        "clove_ssl": dict(exported.metadata),
    }
