"""RoIAlign, level assignment and pyramid pooling against Detectron2 0.6."""

from __future__ import annotations

import re

import pytest
import torch

from clove_ssl.tasks.rcnn.regions.pooling import (
    ALIGNED,
    LEGACY,
    RoIAlignRule,
    assign_levels,
    batched_regions,
    pool_pyramid,
    pool_regions,
)

pytestmark = pytest.mark.golden

FILE = "detectron2/03_roi_align.npz"
STRIDES = (4, 8, 16, 32)


@pytest.fixture
def recorded(golden) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in golden(FILE).items()}


@pytest.fixture
def boxes(recorded) -> list[torch.Tensor]:
    return [recorded["boxes_im0"], recorded["boxes_im1"]]


def test_regions_carry_the_index_of_their_image(recorded, boxes) -> None:
    assert torch.equal(batched_regions(boxes), recorded["rois"])


def test_regions_pooled_from_one_map_are_the_recorded_ones(recorded, boxes) -> None:
    outputs = [name for name in recorded if name.startswith("out_")]
    assert len(outputs) == 8
    for name in outputs:
        stride, size, aligned, sampling = map(int, re.findall(r"\d+", name))
        features = recorded[f"feat_stride{stride}"].float()
        rule = RoIAlignRule(aligned=bool(aligned), sampling=sampling)
        assert rule in (ALIGNED, LEGACY)
        pooled = pool_regions(features, batched_regions(boxes), stride=stride, size=size, rule=rule)
        torch.testing.assert_close(pooled, recorded[name], rtol=0, atol=2e-5)


def test_levels_are_the_recorded_ones(recorded) -> None:
    assert torch.equal(assign_levels(recorded["rois"][:, 1:]), recorded["levels"])
    assert torch.equal(assign_levels(recorded["level_table_boxes"]), recorded["level_table"])


@pytest.mark.parametrize(
    ("name", "size", "rule"),
    [("pooler_v2_7", 7, ALIGNED), ("pooler_v2_14", 14, ALIGNED), ("pooler_legacy_7", 7, LEGACY)],
)
def test_regions_pooled_from_a_pyramid_are_the_recorded_ones(
    recorded, boxes, name: str, size: int, rule: RoIAlignRule
) -> None:
    maps = [recorded[f"feat_stride{stride}"].float() for stride in STRIDES]
    pooled = pool_pyramid(maps, batched_regions(boxes), strides=STRIDES, size=size, rule=rule)
    torch.testing.assert_close(pooled, recorded[name], rtol=0, atol=2e-5)
