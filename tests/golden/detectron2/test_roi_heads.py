"""Labels of regions, box losses and detections against Detectron2 0.6."""

from __future__ import annotations

import pytest
import torch

from clove_ssl.tasks.rcnn.proposals.choose import ProposalTable
from clove_ssl.tasks.rcnn.regions.roi_heads import (
    BoxLosses,
    LabelledRegions,
    box_losses,
    detect,
    label_regions,
    offset_targets,
    sample_regions,
)
from clove_ssl.tasks.rcnn.regions.targets import with_ground_truth

pytestmark = pytest.mark.golden

FILE = "detectron2/05_roi_heads.npz"


@pytest.fixture
def recorded(golden) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in golden(FILE).items()}


def regions_of(recorded: dict[str, torch.Tensor], image: int) -> torch.Tensor:
    """The proposals of an image, and its ground truth behind them."""
    boxes = recorded[f"label_im{image}_proposals"][None]
    counts, finite = torch.tensor([boxes.shape[1]]), torch.tensor(True)
    table = ProposalTable(boxes, torch.zeros(boxes.shape[:2]), counts, finite)
    return with_ground_truth(table, recorded[f"label_im{image}_gt_boxes"][None])[0]


def labelled(recorded: dict[str, torch.Tensor], image: int) -> LabelledRegions:
    return label_regions(
        regions_of(recorded, image),
        recorded[f"label_im{image}_gt_boxes"],
        recorded[f"label_im{image}_gt_classes"],
        num_classes=int(recorded["num_classes"]),
    )


@pytest.mark.parametrize("image", [0, 1])
def test_the_ground_truth_follows_the_proposals(recorded, image: int) -> None:
    assert torch.equal(regions_of(recorded, image), recorded[f"label_im{image}_with_gt"])


@pytest.mark.parametrize("image", [0, 1])
def test_labels_of_regions_are_the_recorded_ones(recorded, image: int) -> None:
    regions = labelled(recorded, image)
    assert torch.equal(regions.classes, recorded[f"label_im{image}_classes"])
    assert torch.equal(regions.matched, recorded[f"label_im{image}_matched"])
    foreground = regions.classes != recorded["num_classes"]
    assert torch.equal(foreground, recorded[f"label_im{image}_fg"] == 1)


@pytest.mark.parametrize("image", [0, 1])
def test_sampled_regions_are_the_recorded_ones(recorded, image: int) -> None:
    num_classes = int(recorded["num_classes"])
    regions = labelled(recorded, image)
    rows, valid = sample_regions(
        regions, torch.arange(len(regions.classes)), num_classes=num_classes, count=64
    )
    sampled = LabelledRegions(*(column[rows[valid]] for column in regions))
    assert torch.equal(sampled.boxes, recorded[f"sampled64_im{image}_boxes"])
    assert torch.equal(sampled.classes, recorded[f"sampled64_im{image}_classes"])
    if image == 0:
        matched = recorded["label_im0_gt_boxes"][sampled.matched]
        assert torch.equal(matched, recorded["sampled64_im0_gt_boxes"])


def recorded_losses(recorded, classes: torch.Tensor, *, beta: float = 0.0) -> BoxLosses:
    """The losses of the recorded outputs, if their regions were of these classes."""
    logits, deltas = recorded["loss_logits"], recorded["loss_deltas"]
    boxes, truth = recorded["loss_proposals"], recorded["loss_gt_boxes"]
    target = offset_targets(boxes, truth, classes, num_classes=logits.shape[1] - 1)
    return box_losses(logits, deltas, classes=classes, target=target, beta=beta)


@pytest.mark.parametrize(("name", "beta"), [("l1", 0.0), ("smooth_l1_beta05", 0.5)])
def test_losses_are_the_recorded_ones(recorded, name: str, beta: float) -> None:
    losses = recorded_losses(recorded, recorded["loss_gt_classes"], beta=beta)
    torch.testing.assert_close(losses.classes, recorded[f"loss_cls_{name}"], rtol=1e-5, atol=0)
    torch.testing.assert_close(losses.offsets, recorded[f"loss_box_{name}"], rtol=1e-5, atol=0)


def test_losses_of_background_alone_are_the_recorded_ones(recorded) -> None:
    classes = torch.full_like(recorded["loss_gt_classes"], int(recorded["num_classes"]))
    losses = recorded_losses(recorded, classes)
    expected = recorded["loss_cls_all_background"]
    torch.testing.assert_close(losses.classes, expected, rtol=1e-5, atol=0)
    assert losses.offsets == recorded["loss_box_all_background"] == 0


@pytest.mark.parametrize("dataset", ["coco", "lvis"])
def test_detections_are_the_recorded_ones(recorded, dataset: str) -> None:
    if dataset == "coco":
        logits, offsets = recorded["coco_logits"], recorded["coco_deltas"]
    else:
        logits = recorded["lvis_logits_x1024"].float() / 1024
        offsets = recorded["lvis_deltas_x32"].float() / 32
    found = detect(
        logits,
        offsets,
        boxes=recorded[f"{dataset}_proposals"],
        image_size=tuple(recorded["image_hw"].tolist()),
        score_above=float(recorded[f"{dataset}_score_thresh"]),
        nms_overlap=float(recorded[f"{dataset}_nms"]),
        count=int(recorded[f"{dataset}_topk"]),
    )
    torch.testing.assert_close(found.boxes, recorded[f"{dataset}_boxes"], rtol=0, atol=1e-3)
    torch.testing.assert_close(found.scores, recorded[f"{dataset}_scores"], rtol=0, atol=1e-6)
    assert torch.equal(found.classes, recorded[f"{dataset}_classes"])
    assert torch.equal(found.rows, recorded[f"{dataset}_row"])
