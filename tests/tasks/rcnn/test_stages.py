"""Matching, RPN, proposals and box heads: empty images, ties, numbers that are not finite."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from builders.tasks.proposing import propose
from torch.nn.utils.rnn import pad_sequence

from clove_ssl.tasks.rcnn.boxes import MatchRule, match_boxes, sample_labels
from clove_ssl.tasks.rcnn.detector import Found, in_original_pixels
from clove_ssl.tasks.rcnn.proposals.choose import ProposalLimits, Proposals
from clove_ssl.tasks.rcnn.proposals.rpn import (
    ANCHOR_RULE,
    RPNHead,
    label_anchors,
    rpn_losses,
    sample_anchors,
)
from clove_ssl.tasks.rcnn.regions.roi_heads import (
    BoxPredictor,
    box_losses,
    detect,
    label_regions,
    offset_targets,
    sample_regions,
)

NONE = torch.zeros(0, 4)
TWO = torch.tensor([[0.0, 0.0, 10.0, 10.0], [20.0, 20.0, 30.0, 30.0]])
LIMITS = ProposalLimits(before_nms=10, after_nms=5)


def shuffled(count: int, seed: int = 0) -> torch.Tensor:
    """Priorities in random order."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def test_all_ties_for_an_object_are_rescued() -> None:
    truth = torch.tensor([[0.0, 0.0, 10.0, 10.0], [0.0, 0.0, 40.0, 40.0]])
    # Two halves of the small object tie; the third box is the best one for the large object.
    boxes = torch.tensor([[0.0, 0.0, 10.0, 5.0], [0.0, 5.0, 10.0, 10.0], [0.0, 0.0, 40.0, 18.0]])
    match = match_boxes(boxes, truth, ANCHOR_RULE)
    assert match.label.tolist() == [1, 1, 1]
    assert match.matched.tolist() == [0, 0, 1]
    plain = match_boxes(boxes, truth, replace(ANCHOR_RULE, rescue=False))
    assert plain.label.tolist() == [-1, -1, -1]


def test_a_rescued_box_keeps_its_own_best_object() -> None:
    truth = torch.tensor([[0.0, 0.0, 10.0, 2.0], [0.0, 0.0, 10.0, 9.0]])
    match = label_anchors(torch.tensor([[0.0, 0.0, 10.0, 10.0]]), [truth])
    assert (match.label.tolist(), match.matched.tolist()) == ([[1]], [[1]])


def test_thresholds_belong_to_the_label_above_them() -> None:
    truth = torch.tensor([[0.0, 0.0, 10.0, 10.0]])
    boxes = torch.tensor([[0.0, 0.0, 10.0, 5.0], [0.0, 0.0, 10.0, 2.5]])  # IoU 0.5 and 0.25
    match = match_boxes(boxes, truth, MatchRule(background_below=0.25, foreground_from=0.5))
    assert match.label.tolist() == [1, -1]


def test_an_image_without_objects_is_all_background() -> None:
    match = label_anchors(TWO, [NONE])
    assert (match.label.tolist(), match.matched.tolist()) == ([[0, 0]], [[0, 0]])


def test_no_anchors_get_no_labels() -> None:
    assert label_anchors(NONE, [TWO, NONE]).label.shape == (2, 0)


def test_an_object_that_no_anchor_meets_makes_no_foreground() -> None:
    match = label_anchors(TWO, [torch.tensor([[5.0, 5.0, 5.0, 5.0], [0.0, 0.0, 9.0, 9.0]])])
    assert match.label.tolist() == [[1, 0]]


def test_images_are_matched_together_as_one_by_one() -> None:
    source = torch.Generator().manual_seed(0)
    corners, sides = (torch.rand(40, 2, generator=source) * 30 for _ in range(2))
    boxes = torch.cat([corners, corners + sides], dim=1)
    truth = [boxes[:5] + 1, NONE, boxes[5:6], boxes[10:18] - 2]
    together = label_anchors(boxes, truth)
    padded = match_boxes(boxes.expand(4, 40, 4), pad_sequence(truth, batch_first=True), ANCHOR_RULE)
    for image, each in enumerate(truth):
        alone = match_boxes(boxes, each, ANCHOR_RULE)
        for batched in (together, padded):
            assert torch.equal(batched.label[image], alone.label)
            assert torch.equal(batched.matched[image], alone.matched)


@pytest.mark.parametrize(
    ("foreground", "background", "expected"),
    [(10, 10, (2, 6)), (1, 10, (1, 7)), (10, 3, (2, 3)), (0, 0, (0, 0)), (0, 20, (0, 8))],
)
def test_background_fills_what_foreground_leaves(
    foreground: int, background: int, expected: tuple[int, int]
) -> None:
    label = torch.tensor([1] * foreground + [0] * background + [-1] * 5)
    kinds = sample_labels(label, shuffled(len(label)), count=8, foreground_share=0.25)
    chosen = [kind.rows[kind.valid] for kind in kinds]
    assert tuple(map(len, chosen)) == expected
    assert [label[index].unique().tolist() for index in chosen] == [
        [value] * bool(count) for value, count in zip((1, 0), expected, strict=True)
    ]


def test_the_lowest_priorities_are_sampled_row_by_row() -> None:
    label = torch.tensor([[1, 0, 1, 0, -1, 0], [0, 0, 0, 0, 0, 0]])
    priority = torch.tensor([[5, 4, 3, 2, 1, 0], [0, 1, 2, 3, 4, 5]])
    foreground, background = sample_anchors(label, priority, count=3)
    chosen = [
        [rows[valid].tolist() for rows, valid in zip(*kind, strict=True)]
        for kind in (foreground, background)
    ]
    assert chosen == [[[2], []], [[5, 3], [0, 1, 2]]]


def test_the_rpn_head_has_the_names_and_the_spread_of_detectron2() -> None:
    torch.manual_seed(0)
    head = RPNHead(64, 15)
    assert head.objectness_logits.weight.shape == (15, 64, 1, 1)
    assert head.anchor_deltas.weight.shape == (60, 64, 1, 1)
    for layer in (head.conv, head.objectness_logits, head.anchor_deltas):
        assert layer.weight.std().item() == pytest.approx(0.01, rel=0.1)
        assert layer.bias.abs().max() == 0
    logits, offsets = head(torch.zeros(2, 64, 3, 5))
    assert logits.shape == (2, 3 * 5 * 15)
    assert offsets.shape == (2, 3 * 5 * 15, 4)


def test_the_rows_of_the_rpn_head_follow_row_column_anchor() -> None:
    head = RPNHead(2, 3)
    with torch.no_grad():
        head.objectness_logits.bias.copy_(torch.arange(3.0))
        head.anchor_deltas.bias.copy_(torch.arange(12.0))
    logits, offsets = head(torch.zeros(1, 2, 2, 2))
    assert logits.tolist() == [[0, 1, 2] * 4]
    assert offsets[0, :3].tolist() == torch.arange(12.0).view(3, 4).tolist()
    assert torch.equal(offsets[0, 3:6], offsets[0, :3])


def test_a_batch_without_objects_has_an_rpn_loss_of_background_alone() -> None:
    logits = torch.zeros(2, 2, requires_grad=True)
    offsets = torch.ones(2, 2, 4, requires_grad=True)
    nothing = torch.zeros(2, 2, dtype=torch.int64)
    losses = rpn_losses(
        logits,
        offsets,
        anchors=TWO,
        sampled=sample_anchors(nothing, nothing),
        matched=nothing,
        truth=[NONE, NONE],
    )
    (losses.objectness + losses.offsets).backward()
    assert losses.objectness.item() == pytest.approx(4 * 0.693147 / 512, rel=1e-5)
    assert losses.offsets == 0
    assert offsets.grad is not None
    assert offsets.grad.abs().max() == 0


def proposed(logits: torch.Tensor, offsets: torch.Tensor, **options) -> Proposals:
    (found,) = propose(
        [logits[None]],
        [offsets[None]],
        anchors=[TWO],
        image_sizes=[(25, 25)],
        **{"limits": LIMITS, "not_finite": "raise", **options},
    )
    return found


def test_proposals_are_clipped_and_ordered_by_their_logits() -> None:
    found = proposed(torch.tensor([-1.0, 3.0]), torch.zeros(2, 4))
    assert found.boxes.tolist() == [[20, 20, 25, 25], [0, 0, 10, 10]]
    assert found.logits.tolist() == [3, -1]


def test_proposals_outside_the_image_are_dropped() -> None:
    far_off = torch.tensor([[9.0, 9.0, 0.0, 0.0]] * 2)
    assert proposed(torch.zeros(2), far_off).boxes.shape == (0, 4)


def test_thin_proposals_stay() -> None:
    thin = torch.tensor([[0.0, 0.0, -10.0, 0.0], [0.0, 0.0, 0.0, 0.0]])  # 10 / e^10 pixels wide
    found = proposed(torch.tensor([1.0, 0.0]), thin)
    assert 0 < found.boxes[0, 2] - found.boxes[0, 0] < 1e-3


def test_thin_detections_stay() -> None:
    thin = Found(torch.tensor([[1.0, 1.0, 1.001, 9.0]]), torch.ones(1), torch.zeros(1))
    assert len(in_original_pixels(thin, seen=(10, 10), original=(10, 10))) == 1


def test_sure_proposals_keep_their_order() -> None:
    sure = torch.tensor([40.0, 41.0])  # both have the probability 1 in single precision
    assert proposed(sure, torch.zeros(2, 4)).logits.tolist() == [41, 40]


@pytest.mark.parametrize("where", ["logits", "offsets"])
def test_proposals_that_are_not_finite_stop_training_and_vanish_in_tests(where: str) -> None:
    inputs = {"logits": torch.zeros(2), "offsets": torch.zeros(2, 4)}
    inputs[where][0] = torch.nan
    with pytest.raises(FloatingPointError):
        proposed(**inputs)
    assert proposed(**inputs, not_finite="drop").boxes.tolist() == [[20, 20, 25, 25]]


def test_levels_do_not_suppress_each_other() -> None:
    same = [TWO[:1], TWO[:1]]
    arguments = ([torch.zeros(1, 1)] * 2, [torch.zeros(1, 1, 4)] * 2)
    options = {"image_sizes": [(25, 25)], "limits": LIMITS, "not_finite": "raise"}
    (apart,) = propose(*arguments, anchors=same, **options)
    (together,) = propose(
        [torch.zeros(1, 2)], [torch.zeros(1, 2, 4)], anchors=[torch.cat(same)], **options
    )
    assert (len(apart.boxes), len(together.boxes)) == (2, 1)


def test_proposals_in_half_precision_are_compared_in_single_precision() -> None:
    found = proposed(torch.zeros(2).half(), torch.zeros(2, 4).half())
    assert (found.boxes.dtype, found.logits.dtype) == (torch.float32, torch.float32)


def test_regions_of_an_image_without_objects_are_background() -> None:
    regions = label_regions(TWO, NONE, torch.zeros(0, dtype=torch.int64), num_classes=5)
    assert regions.classes.tolist() == [5, 5]
    rows, valid = sample_regions(regions, shuffled(2), num_classes=5)
    assert sorted(rows[valid].tolist()) == [0, 1]


def test_an_object_without_area_makes_no_foreground_not_even_of_itself() -> None:
    point = torch.tensor([[5.0, 5.0, 5.0, 5.0]])
    regions = label_regions(torch.cat([TWO, point]), point, torch.tensor([3]), num_classes=5)
    assert regions.classes.tolist() == [5, 5, 5]


def test_a_batch_without_regions_has_a_loss_of_zero_and_a_gradient() -> None:
    logits = torch.zeros(0, 6, requires_grad=True)
    offsets = torch.zeros(0, 20, requires_grad=True)
    classes = torch.zeros(0, dtype=torch.int64)
    target = offset_targets(NONE, NONE, classes, num_classes=5)
    losses = box_losses(logits, offsets, classes=classes, target=target)
    assert losses == (0, 0)
    sum(losses).backward()
    assert logits.grad is not None
    assert offsets.grad is not None


def test_the_box_predictor_has_no_offsets_for_the_background() -> None:
    torch.manual_seed(0)
    predictor = BoxPredictor(256, 20)
    logits, offsets = predictor(torch.zeros(3, 256))
    assert (logits.shape, offsets.shape) == ((3, 21), (3, 80))
    assert predictor.cls_score.weight.std().item() == pytest.approx(0.01, rel=0.1)
    assert predictor.bbox_pred.weight.std().item() == pytest.approx(0.001, rel=0.1)


def test_no_regions_give_no_detections() -> None:
    found = detect(torch.zeros(0, 6), torch.zeros(0, 20), boxes=NONE, image_size=(40, 40))
    assert found.boxes.shape == (0, 4)
    assert found.classes.dtype == torch.int64


def test_sure_background_gives_no_detections() -> None:
    logits = torch.tensor([[0.0, 0.0, 20.0]] * 2)
    assert len(detect(logits, torch.zeros(2, 8), boxes=TWO, image_size=(40, 40)).boxes) == 0


def test_one_number_that_is_not_finite_removes_all_classes_of_a_region() -> None:
    logits = torch.tensor([[1.0, 1.0, 0.0]] * 2)
    offsets = torch.zeros(2, 8)
    offsets[0, 5] = torch.nan
    found = detect(logits, offsets, boxes=TWO, image_size=(40, 40))
    assert found.boxes.tolist() == [[20, 20, 30, 30]] * 2
    assert sorted(found.classes.tolist()) == [0, 1]
    assert found.rows.tolist() == [0, 0]


def test_classes_do_not_suppress_each_other_but_regions_of_a_class_do() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0], [1.0, 2.0, 0.0]])
    boxes = TWO[:1].repeat(2, 1)
    found = detect(logits, torch.zeros(2, 8), boxes=boxes, image_size=(40, 40))
    assert sorted(zip(found.classes.tolist(), found.rows.tolist(), strict=True)) == [(0, 0), (1, 1)]


def test_a_score_has_to_exceed_the_threshold() -> None:
    arguments = {"boxes": TWO[:1], "image_size": (40, 40)}
    at = detect(torch.zeros(1, 2), torch.zeros(1, 4), score_above=0.5, **arguments)
    below = detect(torch.zeros(1, 2), torch.zeros(1, 4), score_above=0.49, **arguments)
    assert (len(at.boxes), len(below.boxes)) == (0, 1)
