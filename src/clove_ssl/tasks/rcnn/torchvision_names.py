"""The names and the order of classes that torchvision gives to our detectors with a pyramid.

Names alone are not enough: torchvision counts the background as class 0 where ours is the last one,
and has box offsets and a mask for it, too, which it never reads.

Dimensions: K classes, C channels.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from clove_ssl.config.detection import BoxHeadConfig
from clove_ssl.errors import UserError
from clove_ssl.tasks.rcnn.detector import Detector
from clove_ssl.weights.safetensors_file import portable_state

_COUNTER = "num_batches_tracked"
_BODY = "features.backbone.body."
_PARAMETER = r"(weight|bias|norm\..+)"
_PATTERNS = (
    (rf"features\.pyramid\.laterals\.c(\d)\.{_PARAMETER}", "backbone.fpn.inner_blocks.{}.{}", -2),
    (rf"features\.pyramid\.outputs\.c(\d)\.{_PARAMETER}", "backbone.fpn.layer_blocks.{}.{}", -2),
    (rf"features\.box_head\.convs\.(\d+)\.{_PARAMETER}", "roi_heads.box_head.{}.{}", 0),
    (rf"mask_head\.convs\.(\d+)\.{_PARAMETER}", "roi_heads.mask_head.{}.{}", 0),
)
"""Convolutions with their norm: pattern, name in torchvision, and what is added to their number."""
_PREFIXES = {
    "proposer.head.conv.": "rpn.head.conv.0.0.",
    "proposer.head.objectness_logits.": "rpn.head.cls_logits.",
    "proposer.head.anchor_deltas.": "rpn.head.bbox_pred.",
    "box_predictor.": "roi_heads.box_predictor.",
    "mask_head.deconv.": "roi_heads.mask_predictor.conv5_mask.",
    "mask_head.predictor.": "roi_heads.mask_predictor.mask_fcn_logits.",
    "keypoint_head.deconv.": "roi_heads.keypoint_predictor.kps_score_lowres.",
    _BODY: "backbone.body.",
}


def torchvision_state(detector: Detector) -> dict[str, Tensor]:
    """The weights of a detector for torchvision's FasterRCNN, MaskRCNN or KeypointRCNN."""
    state = portable_state(detector)
    if detector.config.backbone_norm == "batch":
        state = _with_counters(state)  # stages that are not trained have none
    return {
        torchvision_name(name, detector.config.box): _background_first(name, tensor)
        for name, tensor in state.items()
    }


def heads_from_torchvision(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a detector of torchvision by today's names, with the background last."""
    return {
        name: _background_last(name, tensor)
        for name, tensor in ((_todays_name(name), tensor) for name, tensor in state.items())
    }


def is_two_layers(box: BoxHeadConfig) -> bool:
    """Whether a box head is torchvision's usual one, a ``TwoMLPHead``."""
    return (box.convs, box.fcs) == (0, 2)


def torchvision_name(name: str, box: BoxHeadConfig) -> str:
    """torchvision's name of an entry of a detector's state dict.

    >>> torchvision_name("features.pyramid.laterals.c3.norm.weight", BoxHeadConfig())
    'backbone.fpn.inner_blocks.1.1.weight'
    """
    for pattern, target, added in _PATTERNS:
        if match := re.fullmatch(pattern, name):
            number, entry = match.groups()
            return target.format(int(number) + added, _in_block(entry))
    if match := re.fullmatch(r"features\.box_head\.fcs\.(\d+)\.(.+)", name):
        return f"roi_heads.box_head.{_linear(int(match[1]), box)}.{match[2]}"
    if match := re.fullmatch(r"keypoint_head\.convs\.(\d+)\.(.+)", name):
        return f"roi_heads.keypoint_head.{2 * int(match[1])}.{match[2]}"  # a ReLU behind each
    for prefix, target in _PREFIXES.items():
        if name.startswith(prefix):
            return target + name.removeprefix(prefix)
    raise UserError(
        f"torchvision has no name for {name}; it knows detectors of boxes, masks or keypoints with "
        "a pyramid around its ResNets only. Take detect, instances or keypoints, and a resnet50."
    )


def _in_block(entry: str) -> str:
    """A convolution and its norm are two members of a block there."""
    return f"1.{entry.removeprefix('norm.')}" if entry.startswith("norm.") else f"0.{entry}"


def _linear(number: int, box: BoxHeadConfig) -> str:
    if is_two_layers(box):
        return f"fc{6 + number}"
    # Behind the convolutions and a Flatten, with a ReLU behind each.
    return str(box.convs + 1 + 2 * number)


def _with_counters(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Batch norms of torchvision count batches, also where ours are fixed."""
    counters = {
        name.replace("running_mean", _COUNTER): torch.zeros((), dtype=torch.int64)
        for name in state
        if name.startswith(_BODY) and name.endswith("running_mean")
    }
    return counters | state


def _background_first(name: str, tensor: Tensor) -> Tensor:
    """Rows of classes in torchvision's order."""
    layer = name.rpartition(".")[0]
    if layer == "box_predictor.cls_score":
        return tensor.roll(1, dims=0)  # (K+1, ...)
    if layer == "box_predictor.bbox_pred":
        return torch.cat([torch.zeros_like(tensor[:4]), tensor])  # (4K+4, ...)
    if layer == "mask_head.predictor":
        return torch.cat([torch.zeros_like(tensor[:1]), tensor])  # (K+1, ...)
    return tensor


def _background_last(name: str, tensor: Tensor) -> Tensor:
    """Rows of classes in our order: the way back."""
    layer = name.rpartition(".")[0]
    if layer == "roi_heads.box_predictor.cls_score":
        return tensor.roll(-1, dims=0)
    if layer == "roi_heads.box_predictor.bbox_pred":
        return tensor[4:]
    return tensor[1:] if layer == "roi_heads.mask_predictor.mask_fcn_logits" else tensor


def _todays_name(name: str) -> str:
    """The name that a file of the first versions, as all released ones are, would have now.

    >>> _todays_name("roi_heads.mask_head.mask_fcn1.weight")
    'roi_heads.mask_head.0.0.weight'
    """
    name = re.sub(r"(fpn\.(?:inner|layer)_blocks\.\d+)\.(weight|bias)$", r"\1.0.\2", name)
    name = re.sub(r"(rpn\.head\.conv)\.(weight|bias)$", r"\1.0.0.\2", name)
    if match := re.fullmatch(r"roi_heads\.mask_head\.mask_fcn(\d+)\.(.+)", name):
        return f"roi_heads.mask_head.{int(match[1]) - 1}.0.{match[2]}"
    return name
