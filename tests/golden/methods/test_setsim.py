"""One SetSim step in four settings against a recording of the released code."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from builders.batches.two_views import RecordedGeometry
from builders.batches.vector_batches import Passed, fitting_groups
from torch import Tensor

from clove_ssl.methods.base import Progress
from clove_ssl.methods.config import HeadConfig, MatchingConfig, TeacherConfig
from clove_ssl.methods.setsim.config import SetsConfig, SetSimConfig
from clove_ssl.methods.setsim.loss import cell_cosines, foreground
from clove_ssl.methods.setsim.method import SetSim
from clove_ssl.views.batch import View, ViewBatch

pytestmark = pytest.mark.golden

Arrays = Mapping[str, np.ndarray]
LAYERS = {
    "0_fc_0": "image_head.fc1",
    "0_fc_2": "image_head.fc2",
    "1_0": "cell_head.conv1",
    "1_2": "cell_head.conv2",
}
SETTINGS = {
    "both": {"kind": "both"},
    "attention": {"kind": "attention"},
    "geometry": {"kind": "geometry"},
    "nearest": {"kind": "both", "nearest": "matched"},
}


def recorded(golden: Callable[[str], Arrays], group: str) -> dict[str, Tensor]:
    """The arrays of one group, and those that all groups share."""
    arrays = {name: torch.from_numpy(value) for name, value in golden("methods/setsim.npz").items()}
    common = {name: value for name, value in arrays.items() if "." not in name}
    start = f"{group}."
    mine = {n.removeprefix(start): value for n, value in arrays.items() if n.startswith(start)}
    return common | mine


def build(record: dict[str, Tensor], group: str) -> SetSim:
    out, hidden = record["encoder_q.0_fc_2_weight"].shape
    momentum = float(record["m"])
    config = SetSimConfig(
        head=HeadConfig(hidden=hidden, out=out),
        dense_head=HeadConfig(hidden=hidden, out=out),
        temperature=float(record["T"]),
        queue_size=record["queue_before"].shape[1],
        teacher=TeacherConfig(momentum=momentum, final_momentum=momentum),
        matching=MatchingConfig(threshold=float(record["geo_threshold"])),
        sets=SetsConfig(
            attention=float(record["att_threshold"]),
            likeness=float(record["cos_threshold"]),
            **SETTINGS[group],  # type: ignore[arg-type]
        ),
        shuffle_groups=fitting_groups(len(record["x_q"])),
    )
    method = SetSim(config, Passed(record["x_q"].shape[1])).double()  # type: ignore[arg-type]
    method.queue.entries.copy_(record["queue_before"].T)
    method.dense_queue.entries.copy_(record["queue2_before"].T)
    with torch.no_grad():
        for theirs, encoder in (("q", method.encoder), ("k", method.teacher.module)):
            for layer, mine in LAYERS.items():
                for kind in ("weight", "bias"):
                    weights = record[f"encoder_{theirs}.{layer}_{kind}"]
                    encoder.get_parameter(f"{mine}.{kind}").copy_(weights)
    return method


def batch_of(record: dict[str, Tensor]) -> ViewBatch:
    views = tuple(
        View(record[f"x_{side}"], RecordedGeometry(record[f"coord_{side}"]), "global")  # type: ignore[arg-type]
        for side in "qk"
    )
    return ViewBatch(views, torch.arange(len(record["x_q"])))


def close(actual: Tensor | None, expected: Tensor, atol: float) -> None:
    assert actual is not None
    torch.testing.assert_close(actual.detach(), expected, rtol=0, atol=atol)


@pytest.mark.parametrize("group", list(SETTINGS))
def test_a_step_with_its_queues_is_the_recorded_one(
    golden: Callable[[str], Arrays], group: str
) -> None:
    record = recorded(golden, group)
    method, query_map = build(record, group), record["x_q"].requires_grad_()
    output = method(batch_of(record), Progress(0, 1))
    output.loss.backward()
    close(output.metrics["loss_global"], record["loss_global"], 1e-9)
    close(output.metrics["loss_dense"], record["loss_set"], 1e-7)
    close(output.loss, record["loss_total"], 1e-7)
    close(query_map.grad, record["grad_x_q"], 1e-7)
    method.after_step(Progress(0, 1))
    close(method.queue.entries.T, record["queue_after"], 1e-9)
    close(method.dense_queue.entries.T, record["queue2_after"], 1e-9)
    assert method.queue.pointer == method.dense_queue.pointer == record["ptr_after"].item()


@pytest.mark.parametrize("group", list(SETTINGS))
def test_sets_are_the_recorded_ones(golden: Callable[[str], Arrays], group: str) -> None:
    record = recorded(golden, group)
    maps = record["x_q"], record["x_k"]
    sets = build(record, group).positive_sets(*maps, batch_of(record))
    assert torch.equal(sets, record["mask"].bool())
    alike = cell_cosines(*maps) >= float(record["cos_threshold"])
    assert torch.equal(alike, record["cos_mask"].bool())
    for side, feature_map in zip("qk", maps, strict=True):
        if f"foreground_{side}" in record:
            stands_out = foreground(feature_map, float(record["att_threshold"]))
            assert torch.equal(stands_out, record[f"foreground_{side}"].squeeze(1).bool())
