"""Non-maximum suppression inside a graph, for groups of boxes that do not meet each other.

``torch.export`` keeps torchvision's operator, which knows no groups: boxes of different groups are
moved apart, in float64, where that costs no digit. ONNX has an operator for groups of its own.

Dimensions: G groups, N boxes of each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torchvision.ops import nms


def suppress_with_torchvision(boxes: Tensor, scores: Tensor, overlap: float) -> Tensor:
    """Which boxes (G, N, 4) no better one of their group covers by more than ``overlap``."""
    wide = boxes.double()
    step = wide.max() + 1
    groups = torch.arange(boxes.shape[0], device=boxes.device, dtype=wide.dtype)
    moved = wide + (groups * step)[:, None, None]
    # Most scores of many classes take no part, and the operator would compare them all the same.
    # Two boxes without an area, which meet nobody, are added: a graph refuses to find 0 or 1.
    everything = torch.cat([moved.flatten(0, 1), moved.new_zeros(2, 4)])
    ranks = torch.cat([scores.double().flatten(), moved.new_ones(2)])
    rows = (ranks > 0).nonzero()[:, 0]  # (n,)
    chosen = rows[nms(everything[rows], ranks[rows], overlap)]
    kept = torch.zeros_like(ranks, dtype=torch.bool)
    marks = torch.ones_like(chosen, dtype=torch.bool)
    return kept.index_put((chosen,), marks)[:-2].view_as(scores)


@torch.library.custom_op("clove_ssl::suppress", mutates_args=())
def suppress_by_groups(boxes: Tensor, scores: Tensor, overlap: float) -> Tensor:
    """The same as one operator, which the ONNX exporter knows by its name."""
    return suppress_with_torchvision(boxes, scores, overlap)


@suppress_by_groups.register_fake
def _(boxes: Tensor, scores: Tensor, overlap: float) -> Tensor:
    return torch.empty_like(scores, dtype=torch.bool)


def onnx_translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """How the ONNX exporter writes our operator."""
    return {torch.ops.clove_ssl.suppress.default: _onnx_suppress}


def _onnx_suppress(boxes: Any, scores: Any, overlap: float) -> Any:
    """``NonMaxSuppression`` names what stays as (group, class, row); a mask is made of that."""
    import onnxscript

    op: Any = onnxscript.opset18

    everything = op.Constant(value_ints=[2**31 - 1])
    chosen = op.NonMaxSuppression(
        boxes,
        op.Unsqueeze(scores, op.Constant(value_ints=[1])),
        everything,
        op.Constant(value_floats=[overlap]),
        op.Constant(value_floats=[0.0]),
    )  # (n, 3)
    places = op.Gather(chosen, op.Constant(value_ints=[0, 2]), axis=1)  # (n, 2)
    empty = op.Mul(scores, op.Constant(value_float=0.0))
    ones = op.Expand(op.Constant(value_float=1.0), op.Shape(places, start=0, end=1))
    return op.Greater(op.ScatterND(empty, places, ones), op.Constant(value_float=0.5))
