"""Anchors against those of Detectron2 0.6."""

from __future__ import annotations

import pytest
import torch

from clove_ssl.tasks.models.anchors import C4_ANCHORS, FPN_ANCHORS, cell_anchors

pytestmark = pytest.mark.golden

FILE = "detectron2/01_anchors.npz"


def test_the_anchors_of_c4_are_the_recorded_ones(golden) -> None:
    recorded = golden(FILE)
    (grid,) = C4_ANCHORS.grids([tuple(recorded["c4_grid_hw"].tolist())])
    cell = cell_anchors(C4_ANCHORS.sizes[0], C4_ANCHORS.ratios)
    torch.testing.assert_close(cell, torch.from_numpy(recorded["c4_cell"]), rtol=0, atol=1e-4)
    torch.testing.assert_close(grid, torch.from_numpy(recorded["c4_anchors"]), rtol=0, atol=1e-4)
    assert C4_ANCHORS.anchors_per_cell() == (len(cell),)


def test_the_anchors_of_fpn_are_the_recorded_ones(golden) -> None:
    recorded = golden(FILE)
    assert FPN_ANCHORS.strides == tuple(recorded["fpn_strides"].tolist())
    grids = FPN_ANCHORS.grids([tuple(size) for size in recorded["fpn_grid_hw"].tolist()])
    for level, (grid, sizes) in enumerate(zip(grids, FPN_ANCHORS.sizes, strict=True), start=2):
        cell = cell_anchors(sizes, FPN_ANCHORS.ratios)
        expected_cell = torch.from_numpy(recorded[f"fpn_cell_p{level}"])
        expected_grid = torch.from_numpy(recorded[f"fpn_anchors_p{level}"])
        torch.testing.assert_close(cell, expected_cell, rtol=0, atol=1e-4)
        torch.testing.assert_close(grid, expected_grid, rtol=0, atol=1e-4)
