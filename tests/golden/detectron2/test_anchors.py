"""Anchors against those of Detectron2 0.6."""

from __future__ import annotations

import pytest
import torch

from clove_ssl.config.detection import c4_detector, fpn_detector
from clove_ssl.tasks.rcnn.proposals.rpn import cell_corners
from clove_ssl.tasks.rcnn.proposals.stage import RegionProposer

pytestmark = pytest.mark.golden

FILE = "detectron2/01_anchors.npz"
C4 = RegionProposer(c4_detector(masks=True).proposals, 1, strides=(16,)).layout
FPN = RegionProposer(fpn_detector().proposals, 1, strides=(4, 8, 16, 32, 64)).layout


def test_the_anchors_of_c4_are_the_recorded_ones(golden) -> None:
    recorded = golden(FILE)
    (grid,) = C4.grids([tuple(recorded["c4_grid_hw"].tolist())])
    cell = torch.tensor(cell_corners(C4.sizes[0], C4.ratios))
    torch.testing.assert_close(cell, torch.from_numpy(recorded["c4_cell"]), rtol=0, atol=1e-4)
    torch.testing.assert_close(grid, torch.from_numpy(recorded["c4_anchors"]), rtol=0, atol=1e-4)
    assert C4.anchors_per_cell() == (len(cell),)


def test_the_anchors_of_fpn_are_the_recorded_ones(golden) -> None:
    recorded = golden(FILE)
    assert FPN.strides == tuple(recorded["fpn_strides"].tolist())
    grids = FPN.grids([tuple(size) for size in recorded["fpn_grid_hw"].tolist()])
    for level, (grid, sizes) in enumerate(zip(grids, FPN.sizes, strict=True), start=2):
        cell = torch.tensor(cell_corners(sizes, FPN.ratios))
        expected_cell = torch.from_numpy(recorded[f"fpn_cell_p{level}"])
        expected_grid = torch.from_numpy(recorded[f"fpn_anchors_p{level}"])
        torch.testing.assert_close(cell, expected_cell, rtol=0, atol=1e-4)
        torch.testing.assert_close(grid, expected_grid, rtol=0, atol=1e-4)
