"""Batches of a detector on their way from a worker to the device."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from builders.tasks.tiny_detectors import tiny_batch, tiny_detector
from torch import Tensor

from clove_ssl.tasks.labels.polygons import join_outlines, pack_outlines
from clove_ssl.tasks.rcnn.instances import DetectionBatch, ImageTargets, pack

MIXED = [
    torch.arange(7, dtype=torch.uint8),
    torch.rand(3, 4, dtype=torch.float64),
    torch.zeros(0, 4),
    torch.tensor([True, False, True]),
    torch.arange(6).view(2, 3).T,
]


def test_tensors_of_all_types_come_out_as_they_went_in() -> None:
    packed = pack(MIXED)
    for mine, theirs in zip(packed.tensors(), MIXED, strict=True):
        assert torch.equal(mine, theirs)
        assert mine.dtype == theirs.dtype
        assert mine.untyped_storage().data_ptr() == packed.block.untyped_storage().data_ptr()


def test_no_tensors_are_packed_into_nothing() -> None:
    assert pack([]).tensors() == []


def with_bitmaps() -> DetectionBatch:
    bitmaps = torch.zeros(1, 6, 5, dtype=torch.bool)
    bitmaps[0, 2:4] = True
    objects = ImageTargets(torch.tensor([[0.0, 2, 5, 4]]), torch.tensor([1]), bitmaps=bitmaps)
    image = torch.full((3, 6, 5), 9, dtype=torch.uint8)
    return DetectionBatch((image,), (objects,), ((12, 10),), torch.tensor([3]))


@pytest.mark.parametrize(
    "batch", [tiny_batch(), tiny_batch([[], [[1, 2, 30, 40]]]), with_bitmaps()]
)
def test_a_batch_travels_as_one_block_and_arrives_unchanged(batch: DetectionBatch) -> None:
    arrived = pickle.loads(pickle.dumps(batch)).to("cpu")
    assert arrived.packed is not None
    block = arrived.packed.block.untyped_storage().data_ptr()
    assert (arrived.sizes, arrived.original_sizes) == (batch.sizes, batch.original_sizes)
    assert torch.equal(arrived.keys, batch.keys)
    for mine, theirs in zip(arrived.images, batch.images, strict=True):
        assert torch.equal(mine, theirs)
        assert mine.untyped_storage().data_ptr() == block
    for mine, theirs in zip(arrived.targets, batch.targets, strict=True):
        for name in ("boxes", "classes", "bitmaps", "keypoints"):
            assert equal(getattr(mine, name), getattr(theirs, name)), name


def equal(mine: Tensor | None, theirs: Tensor | None) -> bool:
    return mine is theirs is None or torch.equal(mine, theirs)


def test_losses_do_not_depend_on_the_way_of_the_batch() -> None:
    batch, model = tiny_batch(), tiny_detector("fpn").eval()
    model.proposer.train()
    arrived = pickle.loads(pickle.dumps(batch)).to("cpu")
    with torch.no_grad():
        here, there = (model.losses(each, step=3) for each in (batch, arrived))
    assert here == there


def test_outlines_are_joined_as_they_would_be_packed_together() -> None:
    square, bar = np.array([0.0, 0, 4, 0, 4, 4, 0, 4]), np.array([1.0, 1, 9, 1, 5, 7])
    images = [[[square], [bar, square]], [], [[], [bar]]]
    joined = join_outlines([pack_outlines(objects) for objects in images])
    together = pack_outlines([each for objects in images for each in objects])
    for mine, theirs in zip(joined, together, strict=True):
        assert torch.equal(mine, theirs)
