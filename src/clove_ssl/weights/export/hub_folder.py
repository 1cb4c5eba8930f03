"""A folder in the style of Hugging Face, to be uploaded by hand: weights, config and card.

ResNets open with timm as ``local-dir:FOLDER``; everything opens with ``load_backbone``. timm and
transformers look for files of the same names with other tensors inside, so what transformers reads
lies in a folder of its own, which ``ResNetBackbone.from_pretrained`` is told as ``subfolder``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clove_ssl import __version__
from clove_ssl.atomic import write_text
from clove_ssl.views.batch import IMAGENET_MEAN, IMAGENET_STD
from clove_ssl.weights.export.exported import Exported, largest_difference
from clove_ssl.weights.export.transformers_folder import suits_transformers, write_transformers
from clove_ssl.weights.load import load_backbone
from clove_ssl.weights.origins import HUB_WEIGHTS
from clove_ssl.weights.safetensors_file import save_backbone

CARD = "README.md"
TRANSFORMERS_FOLDER = "transformers"


def write_hub(exported: Exported, path: Path) -> None:
    """Write weights and config; the card comes with every export."""
    path.mkdir(parents=True, exist_ok=True)
    write_text(path / "config.json", json.dumps(_config(exported), indent=2) + "\n")
    save_backbone(exported.backbone, path / HUB_WEIGHTS, exported.metadata)
    if suits_transformers(exported):
        write_transformers(exported, path / TRANSFORMERS_FOLDER)


def check_hub(exported: Exported, path: Path) -> float:
    """Open the folder, and that inside it, again and compare all maps."""
    folders = [path]
    if suits_transformers(exported):
        folders.append(path / TRANSFORMERS_FOLDER)
    return max(
        largest_difference(exported.backbone, load_backbone(each).eval()) for each in folders
    )


def front_matter(licence: str, *, library: str = "clove-ssl") -> str:
    """The head of a card that the hub reads."""
    return f"""---
library_name: {library}
license: other
license_name: {json.dumps(licence)}
tags: [self-supervised-learning, image-feature-extraction, dense-prediction]
---

"""


def _config(exported: Exported) -> dict[str, Any]:
    backbone = exported.backbone
    own = {"architecture": backbone.name, "stage": backbone.stage, "library_version": __version__}
    config: dict[str, Any] = {"clove_ssl": own | dict(exported.metadata)}
    if exported.is_resnet:
        config |= {
            "architecture": exported.network,
            "num_classes": 0,
            "num_features": backbone.channels["c5"],
            "pretrained_cfg": {
                "num_classes": 0,
                "input_size": [3, 224, 224],
                "interpolation": "bilinear",
                "mean": list(IMAGENET_MEAN),
                "std": list(IMAGENET_STD),
                "first_conv": "conv1",
                "classifier": "fc",
            },
        }
    return config
