"""SlotCon against numbers recorded from its released code.

The recorded overlap boxes are float32, ours float64: what is resampled from
crops is compared within 1e-6, everything else within 1e-9.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from builders.batches.vector_batches import Passed
from torch import Tensor

from clove_ssl.layers.normalization import unit_vectors
from clove_ssl.methods.base import Progress
from clove_ssl.methods.slotcon.config import SlotConConfig, SlotHeadConfig
from clove_ssl.methods.slotcon.loss import group_cells, score_cells, slots_of, winners
from clove_ssl.methods.slotcon.method import SlotCon
from clove_ssl.views.batch import View, ViewBatch
from clove_ssl.views.geometry import CropGeometry
from clove_ssl.views.overlap import area_share, place_in_view, resample, shared_rectangle

pytestmark = pytest.mark.golden

Arrays = Mapping[str, np.ndarray]


def close(actual: Tensor | None, expected: np.ndarray, atol: float) -> None:
    assert actual is not None
    np.testing.assert_allclose(actual.detach(), expected, rtol=0, atol=atol)


def geometry_of(crops: np.ndarray, flips: np.ndarray) -> CropGeometry:
    """Recorded crops are top, left, height, width."""
    top, left, height, width = torch.from_numpy(crops).double().unbind(-1)
    return CropGeometry(
        boxes=torch.stack([left, top, left + width, top + height], dim=-1),
        flipped=torch.from_numpy(flips).bool(),
        flipped_vertically=torch.zeros(len(crops), dtype=torch.bool),
        image_size=torch.full((len(crops), 2), 1000),
    )


def signed_boxes(arrays: Arrays) -> list[Tensor]:
    return [
        geometry_of(arrays["crops"][:, view], arrays["flips"][view]).signed_boxes("pixel")
        for view in (0, 1)
    ]


def sorted_corners(places: Tensor) -> Tensor:
    """Ours walk backwards through mirrored views; the recorded ones are told of flips apart."""
    x, y = places[:, 0::2].sort(1).values, places[:, 1::2].sort(1).values
    return torch.stack([x[:, 0], y[:, 0], x[:, 1], y[:, 1]], dim=1)


def test_the_shared_rectangle_lies_where_it_was_recorded(
    golden: Callable[[str], Arrays],
) -> None:
    arrays = golden("methods/slotcon_overlap.npz")
    boxes = signed_boxes(arrays)
    rectangle = shared_rectangle(*boxes)
    for view in (0, 1):
        places = place_in_view(rectangle, boxes[view])
        close(sorted_corners(places), arrays["coords"][view], 1e-6)


def test_crops_that_were_recorded_apart_share_nothing(golden: Callable[[str], Arrays]) -> None:
    crops = golden("methods/slotcon_overlap.npz")["apart.crops"]
    still = np.zeros(len(crops), dtype=np.uint8)
    boxes = [geometry_of(crops[:, view], still).signed_boxes("pixel") for view in (0, 1)]
    assert not area_share(shared_rectangle(*boxes), boxes[1]).any()


def test_resampled_maps_are_the_recorded_ones(golden: Callable[[str], Arrays]) -> None:
    arrays = golden("methods/slotcon_overlap.npz")
    boxes = signed_boxes(arrays)
    rectangle = shared_rectangle(*boxes)
    maps = torch.from_numpy(arrays["x"])
    for view, name in ((0, "aligned_first"), (1, "aligned_second")):
        aligned = resample(maps, place_in_view(rectangle, boxes[view]))
        close(aligned, arrays[name], 1e-5)  # maps of deviation 1, boxes in float32


def test_scores_slots_and_winners_are_the_recorded_ones(
    golden: Callable[[str], Arrays],
) -> None:
    arrays = golden("methods/slotcon.npz")
    prototypes = {
        "q": torch.from_numpy(arrays["prototypes_q"]),
        "k": torch.from_numpy(arrays["prototypes_k_after"]),
    }
    for name in ("q1", "q2", "k1", "k2"):
        projection = torch.from_numpy(arrays[f"{name}.projection"])
        cells = unit_vectors(projection, dim=1)
        scores = score_cells(cells, unit_vectors(prototypes[name[0]]))
        close(scores, arrays[f"{name}.scores"], 1e-9)
        close(slots_of(projection, scores), arrays[f"{name}.slots"], 1e-9)
        won = winners(scores)
        for image, cells in enumerate(arrays[f"{name}.winner"]):
            assert set(won[image].nonzero().flatten().tolist()) == set(cells.flatten().tolist())


def test_the_loss_on_groups_is_the_recorded_one(golden: Callable[[str], Arrays]) -> None:
    arrays = golden("methods/slotcon.npz")
    center = torch.from_numpy(arrays["center_before"][0])
    for here, there in (("q1", "k2"), ("q2", "k1")):
        maps = (torch.from_numpy(arrays[f"{name}.aligned"]) for name in (here, there))
        close(group_cells(*maps, center).mean(), arrays[f"group_loss_{here}{there}"], 1e-9)


def recorded_method(arrays: Arrays) -> SlotCon:
    hidden, channels = arrays["projector_q.mlp_0_weight"].shape[:2]
    prototypes, out = arrays["prototypes_q"].shape
    config = SlotConConfig(
        prototypes=prototypes,
        head=SlotHeadConfig(hidden=hidden, out=out),
    )
    method = SlotCon(config, Passed(channels)).double()  # type: ignore[arg-type]
    branches = {"encoder.": "q", "teacher.module.": "k"}
    state = {"center": torch.from_numpy(arrays["center_before"][0])}
    for prefix, mark in branches.items():
        state[f"{prefix}prototypes"] = torch.from_numpy(arrays[f"prototypes_{mark}"])
    names = {**{f"{p}projector.": f"projector_{m}.mlp_" for p, m in branches.items()}}
    for prefix, recorded in {**names, "search.predictor.": "predictor.mlp_"}.items():
        for name, values in arrays.items():
            if name.startswith(recorded):
                layer, _, kind = name.removeprefix(recorded).partition("_")
                state[f"{prefix}{layer}.{kind}"] = torch.from_numpy(values)
    method.load_state_dict(state)
    return method


def test_a_step_is_the_recorded_one(golden: Callable[[str], Arrays]) -> None:
    arrays = golden("methods/slotcon.npz")
    method = recorded_method(arrays)
    maps = [torch.from_numpy(arrays[name]).requires_grad_() for name in ("x1", "x2")]
    views = tuple(
        View(pixels, geometry_of(arrays["crops"][:, view], arrays["flips"][view]), "global")
        for view, pixels in enumerate(maps)
    )
    progress = Progress(int(arrays["step"]), int(arrays["total_steps"]))
    output = method(ViewBatch(views, torch.arange(len(maps[0]))), progress)
    output.loss.backward()
    method.after_step(progress)
    slot = arrays["slot_loss_q1k2"] + arrays["slot_loss_q2k1"]
    close(output.metrics["loss_slot"], slot, 1e-9)
    close(output.loss, arrays["loss"], 1e-6)
    for pixels, name in zip(maps, ("grad_x1", "grad_x2"), strict=True):
        close(pixels.grad, arrays[name], 1e-6)
    close(method.encoder.prototypes.grad, arrays["grad_prototypes"], 1e-6)
    close(method.search.predictor[6].weight.grad, arrays["grad_predictor_last_weight"], 1e-9)
    close(method.center, arrays["center_after"][0], 1e-9)
    close(method.teacher.module.prototypes, arrays["prototypes_k_after"], 1e-9)
