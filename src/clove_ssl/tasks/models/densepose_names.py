"""The names that Detectron2's DensePose project gives to the parameters of the DensePose branch."""

from __future__ import annotations

import re

from clove_ssl.tasks.models.detectron2_names import detectron2_name

_PREDICTORS = {"person": "ann_index", "part": "index_uv", "u": "u", "v": "v"}


def densepose_name(name: str) -> str:
    """Detectron2's name of an entry of a DensePose detector's state dict."""
    if match := re.fullmatch(r"surface_head\.decoder\.scales\.(\d)\.(.+)", name):
        return f"roi_heads.decoder.p{int(match[1]) + 2}.{match[2]}"
    if match := re.fullmatch(r"surface_head\.decoder\.predictor\.(.+)", name):
        return f"roi_heads.decoder.predictor.{match[1]}"
    if match := re.fullmatch(r"surface_head\.convs\.(\d+)\.(.+)", name):
        return f"roi_heads.densepose_head.body_conv_fcn{int(match[1]) + 1}.{match[2]}"
    if match := re.fullmatch(r"surface_head\.(person|part|u|v)\.(.+)", name):
        return f"roi_heads.densepose_predictor.{_PREDICTORS[match[1]]}_lowres.{match[2]}"
    return detectron2_name(name, "fpn")
