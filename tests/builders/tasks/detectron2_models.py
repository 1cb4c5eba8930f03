"""Detectors with the weights that the recorded models of Detectron2 were filled with."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from clove_ssl.backbones.build import build_backbone
from clove_ssl.config.detection import DetectorConfig, c4_detector, fpn_detector, keypoint_detector
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.tasks.rcnn.detector import Detector, build_detector
from clove_ssl.tasks.rcnn.detectron2_names import Kind, detectron2_name
from clove_ssl.tasks.rcnn.draws import Stage
from clove_ssl.tasks.rcnn.regions.masks import _pixels_of, _resample

T = TypeVar("T")

CONFIGS: dict[str, DetectorConfig] = {
    "c4_mask": c4_detector(masks=True),
    "fpn_mask": fpn_detector(),
    "fpn_keypoint": keypoint_detector(),
}
CLASSES = {"c4_mask": 80, "fpn_mask": 80, "fpn_keypoint": 1}
KEYPOINTS = {"c4_mask": 0, "fpn_mask": 0, "fpn_keypoint": 17}


def build(name: str, config: DetectorConfig | None = None) -> Detector:
    """The detector of a recorded model with weights of its own."""
    torch.manual_seed(0)
    backbone = build_backbone(BackboneConfig(name="resnet50", zero_init_last=False))
    return build_detector(
        config or CONFIGS[name], backbone, classes=CLASSES[name], keypoints=KEYPOINTS[name]
    )


def fill(model: Detector, keys: Mapping) -> None:
    """Give every tensor the numbers that follow from its name in Detectron2."""
    gains = {entry["name"]: entry["gain"] for entry in keys["keys"]}
    with torch.no_grad():
        for mine, tensor in model.state_dict().items():
            name = detectron2_name(mine, model.config.kind)
            values = _values(name, tuple(tensor.shape), gains[name])
            tensor.copy_(torch.from_numpy(values))
        model.box_predictor.cls_score.bias[-1] += keys["cls_score_bias_last_plus"]


def read_json(path: Path) -> dict:
    return json.loads(path.read_text())


def _values(name: str, shape: tuple[int, ...], gain: float | str) -> np.ndarray:
    if gain == "zero":
        return np.zeros(shape, np.int64)
    source = np.random.RandomState(zlib.crc32(name.encode()) & 0x7FFFFFFF)
    noise = source.standard_normal(shape)
    if name.endswith("running_mean"):
        values = 0.05 * noise
    elif name.endswith("running_var"):
        values = 1 + 0.1 * abs(noise)
    elif name.endswith("norm.weight"):
        values = 1 + 0.05 * noise
    elif name.endswith(".bias"):
        values = 0.05 * noise
    else:
        fan_in = math.prod(shape[1:])
        if "deconv" in name or "lowres" in name:
            fan_in = shape[0] * math.prod(shape[2:]) // 4
        values = gain * math.sqrt(2 / fan_in) * noise
    return values.astype(np.float32)


def in_detectron2_names(entries: Mapping[str, T], kind: Kind) -> dict[str, T]:
    """The same entries, by Detectron2's names."""
    return {detectron2_name(name, kind): entry for name, entry in entries.items()}


class LowestFirst:
    """Priorities that take candidates in their order, as the recorded models did."""

    def starts(self, keys: Sequence[int], *, step: int, stage: Stage) -> list[int]:
        return [0] * len(keys)

    def numbers(self, starts: torch.Tensor, count: int) -> torch.Tensor:
        return starts[:, None] + torch.arange(count, device=starts.device)


@torch.no_grad()
def paste_probabilities(
    probabilities: torch.Tensor,  # (R, M, M)
    boxes: torch.Tensor,  # (R, 4)
    *,
    image_size: tuple[int, int],
) -> torch.Tensor:
    """Probabilities of the whole image before they are cut off: (R, H, W); 0 away from the box."""
    pasted = probabilities.new_zeros(len(boxes), *image_size)
    for canvas, mask, box in zip(pasted, probabilities, boxes, strict=True):
        rows, columns = _pixels_of(box.tolist(), image_size)
        canvas[rows, columns] = _resample(mask, box, rows, columns)
    return pasted
