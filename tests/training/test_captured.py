"""Where captured steps find their batches; the steps themselves need a GPU (tests/gpu)."""

from __future__ import annotations

import torch
from builders.runs.tiny_runs import tiny_method

from clove_ssl.layers.transfers import tensors_of
from clove_ssl.pretraining.synthetic import synthetic_batch
from clove_ssl.training.captured import _copy, _place_for
from clove_ssl.views.batch import joined_pixels


def test_a_place_has_room_for_batches_of_one_layout() -> None:
    specs, device = tiny_method().view_specs(), torch.device("cpu")
    batch = synthetic_batch(specs, 3, device=device, dtype=torch.float32)
    place = _place_for(batch)
    _copy(batch, place)
    for mine, theirs in zip(tensors_of(place), tensors_of(batch), strict=True):
        assert torch.equal(mine, theirs)
        assert mine.data_ptr() != theirs.data_ptr()
    large = [view for view in place.views if view.role == "global"]
    # Views that lay side by side still do, so joining them copies nothing.
    assert joined_pixels(large).data_ptr() == large[0].pixels.data_ptr()
