"""Exports opened by the programs they are made for, where these are installed.

Both build the network as the lines of the model card do, load the file, and give their maps.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from clove_ssl.backbones.build import STAGES
from clove_ssl.weights.export.exported import Exported, largest_difference
from clove_ssl.weights.export.usage import detectron2_settings, mmdetection_backbone


def check_with_detectron2(exported: Exported, path: Path) -> float:
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


def check_with_mmdetection(exported: Exported, path: Path) -> float:
    """Load the file with MMDetection's initialisation and compare all maps."""
    import_module("mmdet.models")  # registers the networks
    options = mmdetection_backbone(exported, str(path)) | {"norm_cfg": {"type": "BN"}}
    network: Any = import_module("mmdet.registry").MODELS.build(options)
    network.init_weights()
    network.eval()
    return largest_difference(
        exported.backbone, lambda images: dict(zip(STAGES, network(images), strict=True))
    )
