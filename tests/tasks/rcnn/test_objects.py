"""Objects of a batch in tables, and the first stage, which does not see how long they are."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from builders.tasks.tiny_detectors import tiny_batch, tiny_detector
from builders.waits import waits_counted
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from clove_ssl.tasks.rcnn.detector import Detector
from clove_ssl.tasks.rcnn.objects import (
    ROOM_OF_ONE,
    ROOM_PER_IMAGE,
    TableShape,
    join_rows,
    roomy_shape,
    table_boxes,
    tight_shape,
    whole_numbers,
)

TWO_AND_ONE = None
NONE_AND_THREE = [[], [[10, 10, 60, 70], [0, 0, 20, 20], [0, 0, 20, 20]]]
NOTHING = [[], []]


def test_rows_belong_to_their_image_and_the_rest_to_nobody() -> None:
    owners, images = whole_numbers([2, 0, 1], TableShape(rows=5, width=3))
    assert owners.tolist() == [[0, 0, 2, 0, 0], [0, 1, 0, 0, 0]]
    assert images.tolist() == [[2, 0, 0, 1, 4], [0, 2, 4, 4, 4], [1, 2, 2, 4, 4]]


def test_columns_are_read_image_by_image() -> None:
    boxes = [torch.ones(2, 4), torch.zeros(0, 4), torch.full((1, 4), 3.0)]
    table = table_boxes(boxes)
    by_image = table.by_image(table.boxes)
    assert by_image[..., 0].tolist() == [[1, 1], [0, 0], [3, 0]]
    assert (table.counts.tolist(), table.firsts.tolist()) == ([2, 0, 1], [0, 2, 2])


def test_columns_are_filled_up_along_any_axis() -> None:
    parts = [torch.ones(2, 1), torch.ones(2, 2)]
    assert join_rows(parts, 5, dim=1).tolist() == [[1, 1, 1, 0, 0]] * 2


def test_most_batches_have_tables_of_one_shape() -> None:
    usual = TableShape(16 * ROOM_PER_IMAGE, ROOM_OF_ONE)
    for counts in ([7] * 16, [0] * 16, [15] * 16, [ROOM_OF_ONE, *[3] * 15]):
        assert roomy_shape(counts) == usual
    # One row of zeros more than there are objects, always.
    assert roomy_shape([16] * 16).rows == 2 * usual.rows
    assert roomy_shape([ROOM_OF_ONE + 1, *[3] * 15]).width == 2 * usual.width
    assert (tight_shape([0, 0]), tight_shape([4])) == (TableShape(1, 1), TableShape(5, 4))


def learned(model: Detector, boxes: Any, *, roomy: bool) -> list[Tensor]:
    """The losses of the first stage, the regions for the second, and all gradients."""
    model.zero_grad(set_to_none=True)
    first = model.first_stage(model.first_inputs(tiny_batch(boxes), step=3, roomy=roomy))
    sum(first.losses).backward()
    regions = first.drawn.send().read()
    rows = regions.rows
    assert rows is not None
    columns = [each for each in regions if isinstance(each, Tensor)]
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    numbers = torch.tensor([*rows.of_images, *rows.outline_sizes])
    visible = [] if rows.visible is None else [rows.visible]
    return [*first.losses, *columns, rows.foreground, *visible, numbers, *gradients]


@pytest.mark.parametrize("boxes", [TWO_AND_ONE, NONE_AND_THREE, NOTHING])
@pytest.mark.parametrize("kind", ["fpn", "keypoints", "c4"])
def test_room_in_the_tables_changes_no_bit(kind: str, boxes: Any) -> None:
    results = []
    for roomy in (False, True):
        results.append(learned(tiny_detector(kind).train(), boxes, roomy=roomy))
    for tight, wide in zip(*results, strict=True):
        assert torch.equal(tight, wide)


class _Sent(TorchDispatchMode):
    """Counts tensors made of numbers of the host, but for constants, which a GPU keeps."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func._schema.name.startswith("aten::lift_fresh"):
            frame, names = sys._getframe(), set()
            while frame is not None:
                names.add(frame.f_code.co_name)
                frame = frame.f_back
            self.count += "constant" not in names
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", ["fpn", "keypoints", "c4"])
def test_a_first_stage_can_be_recorded(kind: str) -> None:
    """It waits for nothing, and sends nothing that would have to be sent again."""
    model = tiny_detector(kind).train()
    inputs = model.first_inputs(tiny_batch(), step=0, roomy=True)
    with waits_counted(on_host=tiny_batch().keys) as places, _Sent() as sent:
        sum(model.first_stage(inputs).losses).backward()
    assert set(places) <= {"choose.py"}  # where a GPU has a kernel of our own
    assert sent.count == 0


def test_what_is_sent_is_seen() -> None:
    with _Sent() as sent:
        torch.tensor([1.0, 2.0])
    assert sent.count == 1
