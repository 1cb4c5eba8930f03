"""Proposals, anchor labels and RPN losses against Detectron2 0.6."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from builders.labels.tied_boxes import assert_same_but_for_ties
from builders.tasks.proposing import propose
from torch import Tensor

from clove_ssl.config.detection import c4_detector, fpn_detector
from clove_ssl.tasks.rcnn.boxes import Match, pairwise_iou
from clove_ssl.tasks.rcnn.proposals.rpn import (
    flatten_logits,
    flatten_offsets,
    label_anchors,
    rpn_losses,
    sample_anchors,
)
from clove_ssl.tasks.rcnn.proposals.stage import RegionProposer

pytestmark = pytest.mark.golden

FILE = "detectron2/04_rpn.npz"
LEVELS = {"c4": ["res4"], "fpn": ["p2", "p3", "p4", "p5", "p6"]}
PROPOSERS = {
    "c4": RegionProposer(c4_detector(masks=True).proposals, 1, strides=(16,)),
    "fpn": RegionProposer(fpn_detector().proposals, 1, strides=(4, 8, 16, 32, 64)),
}


class Case:
    """The recorded inputs of one architecture."""

    def __init__(self, recorded: dict[str, np.ndarray], name: str) -> None:
        self.recorded = {
            key.removeprefix(f"{name}_"): torch.from_numpy(value)
            for key, value in recorded.items()
            if key.startswith(f"{name}_")
        }
        self.anchors = PROPOSERS[name].layout.grids([tuple(x) for x in self["grid_hw"].tolist()])
        self.logits = [flatten_logits(self[f"{level}_logits"]) for level in LEVELS[name]]
        deltas = [self[f"{level}_deltas"].float() for level in LEVELS[name]]
        self.offsets = [flatten_offsets(each) for each in deltas]
        self.image_sizes = [tuple(x) for x in self["image_hw"].tolist()]
        self.truth = [self[f"gt_im{image}"] for image in range(len(self.image_sizes))]

    def __getitem__(self, key: str) -> Tensor:
        return self.recorded[key]

    def match(self) -> Match:
        return label_anchors(torch.cat(self.anchors), self.truth)


@pytest.fixture(params=["c4", "fpn"])
def case(golden, request) -> Case:
    return Case(golden(FILE), request.param)


@pytest.mark.parametrize("name", PROPOSERS)
@pytest.mark.parametrize("phase", ["train", "test"])
def test_proposals_are_the_recorded_ones_in_the_same_order(golden, name: str, phase: str) -> None:
    case = Case(golden(FILE), name)
    limits = PROPOSERS[name].train(phase == "train").limits()
    found = propose(
        case.logits,
        case.offsets,
        anchors=case.anchors,
        image_sizes=case.image_sizes,
        limits=limits,
        not_finite="raise",
    )
    for image, each in enumerate(found):
        boxes, logits = (case[f"{phase}_im{image}_{field}"] for field in ("boxes", "logits"))
        assert_same_but_for_ties(
            (each.boxes, each.logits),
            (boxes, logits),
            boxes_within=1e-3,
            logits_within=0,
            candidates=torch.cat([level[image] for level in case.logits]),
            suppressed_above=limits.nms_overlap,
        )


def test_labels_and_matches_of_anchors_are_the_recorded_ones(case: Case) -> None:
    match = case.match()
    for image, (matched, label) in enumerate(zip(*match, strict=True)):
        assert torch.equal(label, case[f"labels_im{image}"])
        assert torch.equal(matched, case[f"matched_im{image}"].long())


def test_the_best_overlap_of_every_object_is_the_recorded_one(case: Case) -> None:
    best = pairwise_iou(case.truth[0], torch.cat(case.anchors)).amax(dim=1)
    torch.testing.assert_close(best, case["best_iou_per_gt_im0"], rtol=1e-6, atol=0)


@pytest.mark.parametrize("labels", ["all", "256"])
def test_losses_are_the_recorded_ones(case: Case, labels: str) -> None:
    match = case.match()
    used = match.label
    if labels == "256":
        used = torch.stack([case[f"sampled_labels_im{image}"] for image in range(len(used))])
    anchors = torch.cat(case.anchors)
    losses = rpn_losses(
        torch.cat(case.logits, dim=1),
        torch.cat(case.offsets, dim=1),
        anchors=anchors,
        sampled=sample_anchors(
            used, torch.zeros_like(used, dtype=torch.int64), count=2 * len(anchors)
        ),
        matched=match.matched,
        truth=case.truth,
    )
    expected = case[f"loss_{labels}_cls"]
    torch.testing.assert_close(losses.objectness, expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(losses.offsets, case[f"loss_{labels}_loc"], rtol=1e-5, atol=0)


def test_as_many_anchors_are_sampled_as_recorded(case: Case) -> None:
    label = case.match().label
    source = torch.Generator().manual_seed(0)
    priority = torch.stack([torch.randperm(label.shape[1], generator=source) for _ in label])
    sampled = sample_anchors(label, priority)
    for kind, value in zip(sampled, (1, 0), strict=True):
        for image, (rows, valid) in enumerate(zip(*kind, strict=True)):
            theirs = case[f"sampled_labels_im{image}"]
            assert valid.sum() == (theirs == value).sum()
            assert (label[image, rows[valid]] == value).all()
