"""Box offsets against those of Detectron2 0.6."""

from __future__ import annotations

import pytest
import torch

from clove_ssl.tasks.rcnn.boxes import (
    LARGEST_LOG_SCALE,
    ROI_WEIGHTS,
    RPN_WEIGHTS,
    decode_boxes,
    encode_boxes,
)

pytestmark = pytest.mark.golden

FILE = "detectron2/02_box_coding.npz"
WEIGHTS = {"rpn": RPN_WEIGHTS, "roi": ROI_WEIGHTS}


def test_weights_and_the_limit_of_growth_are_the_recorded_ones(golden) -> None:
    recorded = golden(FILE)
    assert float(recorded["scale_clamp"]) == LARGEST_LOG_SCALE
    for stage, weights in WEIGHTS.items():
        assert weights == tuple(recorded[f"{stage}_weights"].tolist())


@pytest.mark.parametrize("stage", WEIGHTS)
def test_offsets_are_the_recorded_ones_and_lead_back(golden, stage: str) -> None:
    recorded = golden(FILE)
    source, target = torch.from_numpy(recorded["src"]), torch.from_numpy(recorded["target"])
    offsets = encode_boxes(source, target, weights=WEIGHTS[stage])
    expected = torch.from_numpy(recorded[f"{stage}_get_deltas"])
    torch.testing.assert_close(offsets, expected, rtol=1e-5, atol=1e-5)
    back = decode_boxes(source, offsets, weights=WEIGHTS[stage])
    expected = torch.from_numpy(recorded[f"{stage}_roundtrip"])
    torch.testing.assert_close(back, expected, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("stage", WEIGHTS)
def test_moved_boxes_are_the_recorded_ones(golden, stage: str) -> None:
    recorded = golden(FILE)
    offsets = torch.from_numpy(recorded[f"{stage}_pred_deltas"])
    moved = decode_boxes(torch.from_numpy(recorded["src"]), offsets, weights=WEIGHTS[stage])
    expected = torch.from_numpy(recorded[f"{stage}_apply_deltas"])
    torch.testing.assert_close(moved, expected, rtol=1e-5, atol=1e-3)
