"""The names that MMDetection gives to the parameters of our detectors with a pyramid.

As with Detectron2's, shapes and meanings are the same, and only torchvision's ResNets have them.
"""

from __future__ import annotations

import re

from clove_ssl.errors import UserError

_CONVOLUTION = r"(weight|bias|norm\..+)"
_PATTERNS = (
    (r"features\.backbone\.body\.((?:conv1|bn1|layer[1-4])\..+)", "backbone.{}"),
    (rf"features\.pyramid\.laterals\.c(\d)\.{_CONVOLUTION}", "neck.lateral_convs.{}.{}"),
    (rf"features\.pyramid\.outputs\.c(\d)\.{_CONVOLUTION}", "neck.fpn_convs.{}.{}"),
    (
        rf"features\.box_head\.convs\.(\d+)\.{_CONVOLUTION}",
        "roi_head.bbox_head.shared_convs.{}.{}",
    ),
    (r"features\.box_head\.fcs\.(.+)", "roi_head.bbox_head.shared_fcs.{}"),
    (r"proposer\.head\.conv\.(.+)", "rpn_head.rpn_conv.{}"),
    (r"proposer\.head\.objectness_logits\.(.+)", "rpn_head.rpn_cls.{}"),
    (r"proposer\.head\.anchor_deltas\.(.+)", "rpn_head.rpn_reg.{}"),
    (r"box_predictor\.cls_score\.(.+)", "roi_head.bbox_head.fc_cls.{}"),
    (r"box_predictor\.bbox_pred\.(.+)", "roi_head.bbox_head.fc_reg.{}"),
    (rf"mask_head\.convs\.(\d+)\.{_CONVOLUTION}", "roi_head.mask_head.convs.{}.{}"),
    (r"mask_head\.deconv\.(.+)", "roi_head.mask_head.upsample.{}"),
    (r"mask_head\.predictor\.(.+)", "roi_head.mask_head.conv_logits.{}"),
)


def mmdetection_name(name: str) -> str:
    """MMDetection's name of an entry of a detector's state dict.

    >>> mmdetection_name("features.pyramid.laterals.c3.norm.weight")
    'neck.lateral_convs.1.bn.weight'
    """
    for pattern, target in _PATTERNS:
        match = re.fullmatch(pattern, name)
        if match is None:
            continue
        groups = list(match.groups())
        if len(groups) == 2:  # a convolution that owns its norm is two modules there
            kind, ending = (
                ("bn", groups[1][5:]) if groups[1].startswith("norm.") else ("conv", groups[1])
            )
            groups[1] = f"{kind}.{ending}"
        if ".pyramid." in name:
            groups[0] = str(int(groups[0]) - 2)
        return target.format(*groups)
    raise UserError(
        f"MMDetection has no name for {name}; it knows detectors of boxes and masks with a pyramid "
        "around torchvision's ResNets only. Take coco-fpn and a backbone such as resnet50."
    )
