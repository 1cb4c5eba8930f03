"""The names that Detectron2 gives to the parameters of our detectors.

Weights can be compared and exchanged by name: shapes and meanings are the same. Only detectors
around torchvision's ResNets have such names, since Detectron2 has no other backbone of ours.
"""

from __future__ import annotations

import re
from typing import Literal

from clove_ssl.errors import UserError
from clove_ssl.weights.detectron2_names import detectron2_name as resnet_name

Kind = Literal["c4", "fpn"]

_BACKBONE = "features.backbone.body."

_HEADS = (
    (r"features\.norm\.(.+)", "roi_heads.res5.norm.{}", 0),
    (r"features\.pyramid\.laterals\.c(\d)\.(.+)", "backbone.fpn_lateral{}.{}", 0),
    (r"features\.pyramid\.outputs\.c(\d)\.(.+)", "backbone.fpn_output{}.{}", 0),
    (r"features\.box_head\.convs\.(\d+)\.(.+)", "roi_heads.box_head.conv{}.{}", 1),
    (r"features\.box_head\.fcs\.(\d+)\.(.+)", "roi_heads.box_head.fc{}.{}", 1),
    (r"proposer\.head\.(.+)", "proposal_generator.rpn_head.{}", 0),
    (r"box_predictor\.(.+)", "roi_heads.box_predictor.{}", 0),
    (r"mask_head\.convs\.(\d+)\.(.+)", "roi_heads.mask_head.mask_fcn{}.{}", 1),
    (r"mask_head\.((?:deconv|predictor)\..+)", "roi_heads.mask_head.{}", 0),
    (r"keypoint_head\.convs\.(\d+)\.(.+)", "roi_heads.keypoint_head.conv_fcn{}.{}", 1),
    (r"keypoint_head\.deconv\.(.+)", "roi_heads.keypoint_head.score_lowres.{}", 0),
)
"""Pattern, name in Detectron2, and what is added to the first number in it."""


def detectron2_name(name: str, kind: Kind) -> str:
    """Detectron2's name of an entry of a detector's state dict."""
    if name.startswith(_BACKBONE):
        return _backbone_name(name.removeprefix(_BACKBONE), kind)
    for pattern, target, added in _HEADS:
        if match := re.fullmatch(pattern, name):
            first, *rest = match.groups()
            return target.format(int(first) + added if added else first, *rest)
    raise _no_name(name)


def _backbone_name(name: str, kind: Kind) -> str:
    inner = resnet_name(name)
    if not re.match(r"stem\.conv1\.|res[2-5]\.\d", inner):
        raise _no_name(name)
    if kind == "fpn":
        return f"backbone.bottom_up.{inner}"
    return f"roi_heads.{inner}" if inner.startswith("res5.") else f"backbone.{inner}"


def _no_name(name: str) -> UserError:
    return UserError(
        f"Detectron2 has no name for {name}; it knows detectors around torchvision's ResNets only. "
        "Take a backbone such as resnet50."
    )
