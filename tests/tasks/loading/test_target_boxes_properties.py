"""The boxes that a detector learns have every bit of Detectron2's, and so have anchors that tie."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from references.tasks.detectron2_targets import Box, anchor_labels, target_box

from clove_ssl.config.detection import fpn_detector
from clove_ssl.tasks.detection.coco_annotations import Place, read_annotation
from clove_ssl.tasks.labels.samples import Annotation, Sample
from clove_ssl.tasks.loading.geometry import Placement
from clove_ssl.tasks.loading.targets import PackedObjects, make_targets
from clove_ssl.tasks.rcnn.proposals.rpn import label_anchors
from clove_ssl.tasks.rcnn.proposals.stage import RegionProposer

OLD, NEW = (240, 320), (160, 213)  # height, width
STRIDES = (4, 8, 16, 32, 64)
RESCUED = {
    (175.3, 8.79, 40.29, 16.27): 12,
    (53.23, 80.84, 51.49, 74.83): 6,
    (21.41, 85.0, 15.08, 15.62): 27,
    (15.04, 3.82, 27.61, 15.21): 1,
    (61.54, 70.85, 32.75, 7.32): 23,
}
"""Boxes in a picture of OLD pixels, and how many anchors are foreground in one of NEW pixels.

Nearly all of them tie for the best overlap: corners that are added in double precision make
another number of them foreground.
"""


def read(box: tuple[float, ...], size: tuple[int, int]) -> Annotation:
    height, width = size
    entry = {"id": 1, "bbox": list(box)}
    return read_annotation(entry, Place(width=width, height=height, category=0, keypoints=0))


def targets(annotations: list[Annotation], placement: Placement) -> torch.Tensor:
    height, width = placement.old
    sample = Sample(Path("image.jpg"), 1, width, height, tuple(annotations))
    return make_targets(PackedObjects([sample], "boxes")[0], placement).boxes


@st.composite
def cases(draw: st.DrawFn) -> tuple[tuple[float, ...], Placement]:
    """A box of a file, with two decimals or any, and where its image goes."""
    old, new = ((draw(st.integers(8, 2000)), draw(st.integers(8, 2000))) for _ in range(2))
    decimals = draw(st.sampled_from([0, 2, 17]))
    height, width = old
    x, y = (draw(st.floats(-0.9, side - 4.0)) for side in (width, height))
    right, bottom = draw(st.floats(x + 1, width + 0.9)), draw(st.floats(y + 1, height + 0.9))
    box = tuple(round(value, decimals) for value in (x, y, right - x, bottom - y))
    return box, Placement(old, new, draw(st.booleans()))


@given(cases())
def test_target_boxes_have_the_bits_of_detectron2(
    case: tuple[tuple[float, ...], Placement],
) -> None:
    box, placement = case
    expected = target_box(box, old=placement.old, new=placement.new, mirrored=placement.mirrored)
    found = targets([read(box, placement.old)], placement)
    sides = np.float32(expected[2] - expected[0]), np.float32(expected[3] - expected[1])
    if min(sides) > 1e-5:
        assert found.tolist() == [[float(value) for value in expected]]
    else:
        assert len(found) == 0


@given(cases())
def test_scores_keep_the_corners_of_the_file(case: tuple[tuple[float, ...], Placement]) -> None:
    box, placement = case
    x, y, width, height = box
    assert read(box, placement.old).box == (x, y, x + width, y + height)


@pytest.fixture(scope="module")
def anchors() -> torch.Tensor:
    layout = RegionProposer(fpn_detector().proposals, 1, strides=STRIDES).layout
    padded = [32 * -(-side // 32) for side in NEW]
    return torch.cat(layout.grids([tuple(-(-side // each) for side in padded) for each in STRIDES]))


@pytest.mark.parametrize("box", RESCUED, ids=str)
def test_as_many_tied_anchors_are_foreground_as_in_detectron2(
    box: tuple[float, ...], anchors: torch.Tensor
) -> None:
    found = targets([read(box, OLD)], Placement(OLD, NEW))
    label = label_anchors(anchors, [found]).label[0]
    assert int((label == 1).sum()) == RESCUED[box]
    truth: list[Box] = [target_box(box, old=OLD, new=NEW, mirrored=False)]
    assert label.tolist() == anchor_labels([tuple(row) for row in anchors.numpy()], truth)


def test_the_last_bit_of_a_box_decides_which_anchors_tie(anchors: torch.Tensor) -> None:
    for box, count in RESCUED.items():
        x, y, width, height = box
        corners = np.array([[x, y, x + width, y + height]])
        doubles = torch.from_numpy(Placement(OLD, NEW).boxes(corners).astype(np.float32))
        assert int((label_anchors(anchors, [doubles]).label == 1).sum()) != count
