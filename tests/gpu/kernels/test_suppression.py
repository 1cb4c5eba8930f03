"""The kernel that suppresses all groups at once against torchvision, group by group.

With ``TRITON_INTERPRET=1`` in the environment the small cases also run on the CPU.
"""

from __future__ import annotations

import pytest
import torch
from builders.gpu_marks import DEVICE, NEEDS_KERNELS, full_size
from torch import Tensor

from clove_ssl.tasks.rcnn.proposals.choose import survivors

pytest.importorskip("triton")

pytestmark = NEEDS_KERNELS


def crowded_boxes(images: int, count: int, *, side: float, seed: int = 0) -> Tensor:
    """Boxes that overlap in chains, some of them equal, some without an area."""
    generator = torch.Generator().manual_seed(seed)
    corner = side * torch.rand(images, count, 2, generator=generator)
    size = 4 + 0.3 * side * torch.rand(images, count, 2, generator=generator)
    boxes = torch.cat([corner, corner + size], dim=2)
    boxes[:, 1::7] = boxes[:, 0:1]
    boxes[:, 3::11] = 0
    return boxes


def compare(boxes: Tensor, level_sizes: list[int], overlap: float) -> None:
    from clove_ssl.tasks.rcnn.proposals.suppression_kernel import survivors_on_gpu

    found = survivors_on_gpu(boxes.to(DEVICE), level_sizes, overlap)
    assert torch.equal(found.cpu(), survivors(boxes, level_sizes, overlap))


@pytest.mark.parametrize("overlap", [0.1, 0.5, 0.7])
def test_small_groups(overlap: float) -> None:
    compare(crowded_boxes(2, 150, side=30), [70, 1, 64, 15], overlap)


def test_a_chain_of_boxes_in_which_every_second_one_survives() -> None:
    left = torch.arange(130.0)[:, None] * 2
    boxes = torch.cat([left, torch.zeros_like(left), left + 10, torch.full_like(left, 10)], dim=1)
    compare(boxes[None], [130], 0.6)  # neighbours share two thirds


def test_tiny_groups_whose_pairs_are_compared_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clove_ssl.tasks.rcnn.proposals.suppression_kernel.MANY", 60)
    compare(crowded_boxes(1, 135, side=30), [70, 1, 64], 0.3)


@full_size
def test_the_sizes_of_a_published_c4_detector() -> None:
    compare(crowded_boxes(16, 12000, side=800), [12000], 0.7)


@full_size
def test_the_sizes_of_a_published_detector() -> None:
    compare(crowded_boxes(16, 8663, side=800), [2000, 2000, 2000, 2000, 663], 0.7)
