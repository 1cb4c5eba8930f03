"""Five MoCo v2 steps against a recording of the released code.

The recorded encoder is the head alone, so features stand in the place of pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from builders.batches.vector_batches import Passed, batch_of_maps, fitting_groups
from torch import Tensor

from clove_ssl.methods.base import Progress
from clove_ssl.methods.config import HeadConfig, TeacherConfig
from clove_ssl.methods.moco.config import MoCoConfig
from clove_ssl.methods.moco.method import MoCo
from clove_ssl.methods.recipes import recipe
from clove_ssl.optimizers import build_optimizer

pytestmark = pytest.mark.golden

Arrays = Mapping[str, np.ndarray]
STEPS = 5
LAYERS = {"fc_0": "fc1", "fc_2": "fc2"}


def build(arrays: Arrays) -> MoCo:
    hidden, channels = arrays["encoder_q.fc_0_weight"].shape
    momentum = float(arrays["m"])
    config = MoCoConfig(
        head=HeadConfig(hidden=hidden, out=len(arrays["encoder_q.fc_2_weight"])),
        temperature=float(arrays["T"]),
        queue_size=int(arrays["K"]),
        teacher=TeacherConfig(momentum=momentum, final_momentum=momentum),
        shuffle_groups=fitting_groups(len(arrays["step0.x_q"])),
    )
    method = MoCo(config, Passed(channels)).double()  # type: ignore[arg-type]
    method.queue.entries.copy_(torch.from_numpy(arrays["queue_before"]).T)
    with torch.no_grad():
        for theirs, encoder in (("q", method.encoder), ("k", method.teacher.module)):
            for layer, mine in LAYERS.items():
                for kind in ("weight", "bias"):
                    recorded = torch.from_numpy(arrays[f"encoder_{theirs}.{layer}_{kind}"])
                    encoder.head.get_parameter(f"{mine}.{kind}").copy_(recorded)
    return method


def assert_recorded(actual: Tensor | None, arrays: Arrays, name: str) -> None:
    assert actual is not None
    np.testing.assert_allclose(actual.detach(), arrays[name], rtol=0, atol=1e-9, err_msg=name)


def test_five_steps_follow_the_recorded_ones(golden: Callable[[str], Arrays]) -> None:
    arrays = golden("methods/moco.npz")
    method = build(arrays)
    published = recipe("moco-r50-200ep", Path("run")).optimizer
    assert float(arrays["sgd_momentum"]) == published.momentum
    assert float(arrays["weight_decay"]) == published.weight_decay
    optimizer = build_optimizer(published, method, float(arrays["lr"]))
    for step in range(STEPS):
        now, progress = f"step{step}.", Progress(step, STEPS)
        queries = torch.from_numpy(arrays[now + "x_q"]).requires_grad_()
        output = method(batch_of_maps(queries, torch.from_numpy(arrays[now + "x_k"])), progress)
        optimizer.zero_grad()
        output.loss.backward()
        assert_recorded(output.loss, arrays, now + "loss")
        assert_recorded(queries.grad, arrays, now + "grad_x_q")
        student, teacher = method.encoder.head, method.teacher.module.head
        assert_recorded(student.get_parameter("fc2.weight").grad, arrays, now + "grad_fc2_weight")
        check_figures(output.metrics, arrays[now + "logits"] * float(arrays["T"]))
        optimizer.step()
        method.after_step(progress)
        assert_recorded(method.queue.entries.T, arrays, now + "queue")
        assert method.queue.pointer == arrays[now + "ptr"].item()
        for mine, theirs in (("fc1.weight", "fc0_weight"), ("fc1.bias", "fc0_bias")):
            assert_recorded(student.get_parameter(mine), arrays, f"{now}encoder_q_{theirs}")
        for mine, theirs in (("fc1.weight", "fc0_weight"), ("fc2.bias", "fc2_bias")):
            assert_recorded(teacher.get_parameter(mine), arrays, f"{now}encoder_k_{theirs}")


def check_figures(metrics: Mapping[str, Tensor], cosines: np.ndarray) -> None:
    """The figures are those of the recorded cosines, whose first column is the positive."""
    assert metrics["cos_positive"].item() == pytest.approx(cosines[:, 0].mean())
    assert metrics["cos_negative"].item() == pytest.approx(cosines[:, 1:].mean())
    assert metrics["accuracy"].item() == pytest.approx((cosines.argmax(1) == 0).mean())
