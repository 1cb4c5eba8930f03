"""Sizes and pixels of resized images against Detectron2 0.6."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from clove_ssl.tasks.rcnn.pixels import resize_boxes, resize_image, resized_shape

pytestmark = pytest.mark.golden

FILE = "detectron2/08_resize.npz"


def test_sizes_are_the_recorded_ones(golden) -> None:
    recorded = golden(FILE)
    for query, expected in zip(recorded["query_h_w_short_max"], recorded["out_h_w"], strict=True):
        height, width, short_side, longest = query.tolist()
        shape = resized_shape(height, width, short_side=short_side, longest=longest)
        assert shape == tuple(expected.tolist()), query


@pytest.mark.parametrize("case", ["down", "up", "max_limited"])
def test_pixels_and_boxes_are_the_recorded_ones(golden, case: str) -> None:
    recorded = golden(FILE)
    image = recorded["image"]
    short_side, longest = recorded[f"{case}_short_max"].tolist()
    shape = resized_shape(*image.shape[:2], short_side=short_side, longest=longest)
    expected = recorded[f"{case}_image"]
    assert shape == expected.shape[:2]
    # Versions of Pillow may round differently.
    difference = np.abs(resize_image(image, shape).astype(int) - expected.astype(int))
    assert difference.max() <= 1
    boxes = resize_boxes(torch.from_numpy(recorded["boxes"]), image.shape[:2], shape)
    torch.testing.assert_close(boxes, torch.from_numpy(recorded[f"{case}_boxes"]))
