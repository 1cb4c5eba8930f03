"""Confusion counts of label maps; what follows from them is tested with the probe."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from clove_ssl.data.labels.pixels import IGNORE
from clove_ssl.tasks.semantic.scores import class_iou, confusion, mean_iou

CLASSES = 4


def reference_iou(truth: Tensor, predicted: Tensor) -> dict[int, float]:
    """Intersection over union from sets of pixels."""
    judged = truth != IGNORE
    found = {}
    for k in range(CLASSES):
        here, there = (truth == k) & judged, (predicted == k) & judged
        if (here | there).any():
            found[k] = ((here & there).sum() / (here | there).sum().double()).item()
    return found


@given(st.integers(0, 2**31), st.sampled_from([torch.uint8, torch.int64]))
def test_scores_equal_those_of_pixel_sets(seed: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randint(CLASSES - 1, (2, 5, 7), generator=generator).to(dtype)
    predicted = torch.randint(CLASSES, (2, 5, 7), generator=generator)
    truth[torch.rand(truth.shape, generator=generator) < 0.3] = IGNORE
    counts = confusion(truth, predicted, CLASSES)
    assert class_iou(counts) == pytest.approx(reference_iou(truth, predicted), abs=1e-12)


def test_unjudged_pixels_count_nowhere() -> None:
    truth = torch.tensor([[0, IGNORE], [1, IGNORE]])
    counts = confusion(truth, torch.tensor([[0, 1], [1, 0]]), 2)
    assert counts.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert mean_iou(counts) == 1.0


def test_a_map_that_nobody_judged_has_no_counts() -> None:
    counts = confusion(torch.full((3, 3), IGNORE), torch.zeros(3, 3), 2)
    assert counts.sum() == 0
    assert mean_iou(counts) == 0.0


def test_another_label_can_mean_unjudged() -> None:
    counts = confusion(torch.tensor([0, 9]), torch.tensor([0, 1]), 2, ignore=9)
    assert counts.sum() == 1


@pytest.mark.parametrize(("truth", "predicted"), [([0, 2], [0, 1]), ([0, 1], [0, 2]), ([0], [-1])])
def test_labels_beyond_the_classes_are_refused(truth: list[int], predicted: list[int]) -> None:
    with pytest.raises(ValueError, match="but 2 classes"):
        confusion(torch.tensor(truth), torch.tensor(predicted), 2)


def test_maps_of_two_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="predicted"):
        confusion(torch.zeros(2, 2), torch.zeros(4), 2)
