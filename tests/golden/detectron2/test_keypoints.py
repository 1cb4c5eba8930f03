"""Keypoint targets, loss, decoding and selection against Detectron2 0.6."""

from __future__ import annotations

import pytest
import torch

from clove_ssl.tasks.rcnn.regions.keypoints import (
    find_keypoints,
    keypoint_loss,
    keypoint_targets,
    regions_with_keypoints,
)

pytestmark = pytest.mark.golden

FILE = "detectron2/07_keypoints.npz"


@pytest.fixture
def recorded(golden) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in golden(FILE).items()}


def test_targets_are_the_recorded_ones(recorded) -> None:
    targets = keypoint_targets(recorded["keypoints"], recorded["boxes"])
    assert torch.equal(targets.cells, recorded["target_index"])
    assert torch.equal(targets.valid, recorded["valid"] == 1)


def test_losses_are_the_recorded_ones(recorded) -> None:
    targets = keypoint_targets(recorded["keypoints"], recorded["boxes"])
    assert targets.valid.sum() == recorded["normalizer_visible"]
    logits = recorded["logits_x4096"].float() / 4096
    visible = keypoint_loss(logits, targets)
    fixed = keypoint_loss(logits, targets, normalizer=100)
    torch.testing.assert_close(visible, recorded["loss_visible"], rtol=1e-5, atol=0)
    torch.testing.assert_close(fixed, recorded["loss_normalizer100"], rtol=1e-5, atol=0)


def test_found_keypoints_are_the_recorded_ones(recorded) -> None:
    maps = recorded["decode_maps_x4096"].float() / 4096
    found = find_keypoints(maps, recorded["decode_rois"])
    x, y, logits, scores = recorded["decoded"].unbind(-1)
    torch.testing.assert_close(found.points, torch.stack([x, y], dim=-1), rtol=0, atol=1e-3)
    torch.testing.assert_close(found.logits, logits, rtol=0, atol=1e-4)
    torch.testing.assert_close(found.scores, scores, rtol=1e-4, atol=0)


def test_regions_with_a_visible_keypoint_are_the_recorded_ones(recorded) -> None:
    selected = regions_with_keypoints(recorded["select_keypoints"], recorded["boxes"])
    assert torch.equal(torch.nonzero(selected).squeeze(1), recorded["selected"])
