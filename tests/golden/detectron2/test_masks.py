"""Mask targets, mask loss and pasted masks against Detectron2 0.6."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from builders.tasks.detectron2_models import paste_probabilities
from builders.tasks.proposing import masks_in_boxes

from clove_ssl.tasks.labels.polygons import pack_outlines
from clove_ssl.tasks.rcnn.regions.masks import mask_loss, paste_masks

pytestmark = pytest.mark.golden

FILE = "detectron2/06_masks.npz"
MOST_DIFFERENT_PIXELS = 2


@pytest.fixture
def recorded(golden) -> dict[str, np.ndarray]:
    return golden(FILE)


def objects(recorded: dict[str, np.ndarray]) -> list[list[np.ndarray]]:
    """Polygons of every object, from the concatenated coordinates."""
    polygons = np.split(recorded["poly_xy"], np.cumsum(recorded["poly_lengths"])[:-1])
    ends = np.cumsum(recorded["polys_per_instance"])
    return [polygons[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


@pytest.mark.parametrize("size", [14, 28])
def test_targets_are_the_recorded_ones(recorded, size: int) -> None:
    targets = masks_in_boxes(
        pack_outlines(objects(recorded)),
        torch.arange(len(recorded["boxes"])),
        torch.from_numpy(recorded["boxes"]),
        size=size,
    )
    np.testing.assert_array_equal(targets, recorded[f"target_{size}"])


@pytest.mark.parametrize("size", [14, 28])
def test_the_loss_is_the_recorded_one(recorded, size: int) -> None:
    logits = torch.from_numpy(recorded[f"logits_{size}"]).float()  # (R, K, M, M)
    own = logits[torch.arange(len(logits)), torch.from_numpy(recorded["gt_classes"])]
    loss = mask_loss(own, torch.from_numpy(recorded[f"target_{size}"]))
    expected = torch.tensor(recorded[f"loss_{size}"].item())
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0)


def test_pasted_masks_are_the_recorded_ones(recorded) -> None:
    height, width = recorded["paste_image_hw"].tolist()
    pasted = paste_masks(
        torch.from_numpy(recorded["paste_soft"]),
        torch.from_numpy(recorded["paste_boxes"]),
        image_size=(height, width),
    ).numpy()
    bits = np.unpackbits(recorded["paste_packedbits"], axis=1, count=height * width)
    different = (pasted.reshape(len(bits), -1) != bits.astype(bool)).sum(axis=1)
    assert (different <= MOST_DIFFERENT_PIXELS).all()
    np.testing.assert_array_equal(bits.sum(axis=1), recorded["paste_area"])


def test_pasted_probabilities_are_the_recorded_ones(recorded) -> None:
    pasted = paste_probabilities(
        torch.from_numpy(recorded["paste_soft"]),
        torch.from_numpy(recorded["paste_boxes"]),
        image_size=tuple(recorded["paste_image_hw"].tolist()),
    )
    levels = np.floor(255 * pasted.numpy()).astype(int)
    assert np.abs(levels - recorded["paste_soft_uint8"]).max() <= 1
