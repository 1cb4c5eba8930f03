"""What must hold for any boxes."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from clove_ssl.tasks.rcnn.boxes import (
    ROI_WEIGHTS,
    clip_boxes,
    decode_boxes,
    encode_boxes,
    pairwise_iou,
)

corner = st.floats(-500, 500)
side = st.floats(1, 500)


@st.composite
def boxes(draw: st.DrawFn, count: int = 3) -> Tensor:
    rows = []
    for _ in range(count):
        x, y, width, height = draw(corner), draw(corner), draw(side), draw(side)
        rows.append([x, y, x + width, y + height])
    return torch.tensor(rows, dtype=torch.float64)


@given(boxes())
def test_offsets_to_boxes_in_reach_lead_there(source: Tensor) -> None:
    size = source[:, 2:] - source[:, :2]
    target = torch.cat([source[:, :2] - 3 * size, source[:, 2:] + 0.5 * size], dim=1)
    offsets = encode_boxes(source, target, weights=ROI_WEIGHTS)
    back = decode_boxes(source, offsets, weights=ROI_WEIGHTS)
    torch.testing.assert_close(back, target, rtol=0, atol=1e-8)


@given(boxes(), boxes())
def test_overlap_is_symmetric_and_at_most_one(first: Tensor, second: Tensor) -> None:
    overlap = pairwise_iou(first, second)
    torch.testing.assert_close(overlap, pairwise_iou(second, first).mT, rtol=1e-12, atol=0)
    assert overlap.min() >= 0
    assert overlap.max() <= 1 + 1e-9
    torch.testing.assert_close(pairwise_iou(first, first).diagonal(), torch.ones(3).double())


@given(boxes())
def test_clipped_boxes_lie_in_the_image_and_stay_there(anything: Tensor) -> None:
    clipped = clip_boxes(anything, (100, 200))
    assert clipped.min() >= 0
    assert clipped[:, 0::2].max() <= 200
    assert clipped[:, 1::2].max() <= 100
    assert torch.equal(clip_boxes(clipped, (100, 200)), clipped)
