"""Boxes, crops and masks against numbers recorded from CLoVE's released code."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from clove_ssl.views.draw.crops import central_crop
from clove_ssl.views.geometry import CropGeometry, match_cells

pytestmark = pytest.mark.golden


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("group", ["gg", "lg", "gg05", "odd", "special"])
def test_masks_are_the_recorded_ones(golden, group: str, dtype: torch.dtype) -> None:
    recorded = golden("methods/clove_masks.npz")
    mask = match_cells(
        torch.from_numpy(recorded[f"{group}.coord_q"]).to(dtype),
        torch.from_numpy(recorded[f"{group}.coord_k"]).to(dtype),
        tuple(recorded[f"{group}.grid_q"].tolist()),
        tuple(recorded[f"{group}.grid_k"].tolist()),
        float(recorded[f"{group}.ratio"]),
    )
    np.testing.assert_array_equal(mask.numpy(), recorded[f"{group}.mask"].astype(bool))


def test_corners_are_the_recorded_ones(golden) -> None:
    recorded = golden("methods/clove_coords.npz")
    rows = torch.from_numpy(recorded["crop"])
    top, left, height, width, image_height, image_width, flipped, upside_down = rows.unbind(1)
    geometry = CropGeometry(
        boxes=torch.stack([left, top, left + width, top + height], dim=1).float(),
        flipped=flipped.bool(),
        flipped_vertically=upside_down.bool(),
        image_size=torch.stack([image_height, image_width], dim=1),
    )
    expected = torch.from_numpy(recorded["coord"])
    torch.testing.assert_close(geometry.signed_boxes("per-axis"), expected, rtol=0, atol=1e-6)


def test_the_crop_when_no_attempt_fits_is_the_recorded_one(golden) -> None:
    recorded = golden("methods/clove_coords.npz")["fallback"]
    crops = central_crop(recorded[:, :2], np.array([3 / 4, 4 / 3]))
    np.testing.assert_array_equal(crops, recorded[:, 2:])
