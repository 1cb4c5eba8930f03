"""Three DenseCL forward and backward passes against a recording of the released code.

The recording begins at the backbone's maps, and its student never moves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from builders.batches.vector_batches import Passed, batch_of_maps, fitting_groups
from torch import Tensor

from clove_ssl.methods.base import Progress
from clove_ssl.methods.config import HeadConfig, TeacherConfig
from clove_ssl.methods.contrastive import most_similar_cells
from clove_ssl.methods.densecl.config import DenseCLConfig
from clove_ssl.methods.densecl.method import DenseCL

pytestmark = pytest.mark.golden

Arrays = Mapping[str, np.ndarray]
STEPS = 3
LAYERS = {
    "mlp_0": "image_head.fc1",
    "mlp_2": "image_head.fc2",
    "mlp2_0": "cell_head.conv1",
    "mlp2_2": "cell_head.conv2",
}


def build(arrays: Arrays) -> DenseCL:
    out, hidden = arrays["neck_q.mlp_2_weight"].shape
    momentum = float(arrays["m"])
    config = DenseCLConfig(
        head=HeadConfig(hidden=hidden, out=out),
        dense_head=HeadConfig(hidden=hidden, out=out),
        temperature=float(arrays["T"]),
        queue_size=int(arrays["K"]),
        dense_weight=float(arrays["loss_lambda"]),
        teacher=TeacherConfig(momentum=momentum, final_momentum=momentum),
        shuffle_groups=fitting_groups(len(arrays["step0.x"])),
    )
    method = DenseCL(config, Passed(arrays["step0.x"].shape[2])).double()  # type: ignore[arg-type]
    method.queue.entries.copy_(torch.from_numpy(arrays["queue_before"]).T)
    method.dense_queue.entries.copy_(torch.from_numpy(arrays["queue2_before"]).T)
    with torch.no_grad():
        for theirs, encoder in (("q", method.encoder), ("k", method.teacher.module)):
            for layer, mine in LAYERS.items():
                for kind in ("weight", "bias"):
                    recorded = torch.from_numpy(arrays[f"neck_{theirs}.{layer}_{kind}"])
                    encoder.get_parameter(f"{mine}.{kind}").copy_(recorded)
    return method


def assert_recorded(actual: Tensor | None, arrays: Arrays, name: str) -> None:
    assert actual is not None
    np.testing.assert_allclose(actual.detach(), arrays[name], rtol=0, atol=1e-9, err_msg=name)


def test_three_steps_follow_the_recorded_ones(golden: Callable[[str], Arrays]) -> None:
    arrays = golden("methods/densecl.npz")
    method = build(arrays)
    share = float(arrays["loss_lambda"])
    for step in range(STEPS):
        now, progress = f"step{step}.", Progress(step, STEPS)
        maps = torch.from_numpy(arrays[now + "x"]).requires_grad_()
        method.zero_grad()
        output = method(batch_of_maps(maps[:, 0], maps[:, 1]), progress)
        output.loss.backward()
        between_images, between_cells = (
            output.metrics[name] for name in ("loss_global", "loss_dense")
        )
        assert_recorded((1 - share) * between_images, arrays, now + "loss_global_weighted")
        assert_recorded(share * between_cells, arrays, now + "loss_dense_weighted")
        total = arrays[now + "loss_global_weighted"] + arrays[now + "loss_dense_weighted"]
        assert output.loss.item() == pytest.approx(float(total), abs=1e-9)
        assert_recorded(maps.grad, arrays, now + "grad_x")
        last = method.encoder.get_parameter("cell_head.conv2.weight")
        assert_recorded(last.grad, arrays, now + "grad_mlp2_2_weight")
        method.after_step(progress)
        check_state(method, arrays, now)


def check_state(method: DenseCL, arrays: Arrays, now: str) -> None:
    """Queues with their newest rows, pointers, and the teacher."""
    for queue, number in ((method.queue, ""), (method.dense_queue, "2")):
        assert_recorded(queue.entries.T, arrays, f"{now}queue{number}")
        assert queue.pointer == arrays[f"{now}ptr{number}"].item()
        keys = arrays[f"{now}k{number}"]
        newest = (int(queue.pointer) - len(keys) + np.arange(len(keys))) % len(queue.entries)
        np.testing.assert_allclose(queue.entries[newest], keys, rtol=0, atol=1e-9)
    first = method.teacher.module.get_parameter("image_head.fc1.weight")
    assert_recorded(first, arrays, now + "neck_k_mlp_0_weight")


@pytest.mark.parametrize("step", range(STEPS))
def test_cells_meet_their_recorded_partners(golden: Callable[[str], Arrays], step: int) -> None:
    arrays = golden("methods/densecl.npz")
    queries, keys = torch.from_numpy(arrays[f"step{step}.x"]).unbind(1)
    assert np.array_equal(most_similar_cells(queries, keys), arrays[f"step{step}.match_index"])
