"""BYOL's loss and one step against a recording of yaox12/BYOL-PyTorch.

That code averages both directions (``form="release"``). Encoder and predictor
were single linear layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
import pytest
import torch
from builders.batches.vector_batches import Passed, batch_of_maps
from torch import Tensor, nn

from clove_ssl.layers.normalization import unit_vectors
from clove_ssl.methods.base import Progress
from clove_ssl.methods.byol.config import BYOLConfig
from clove_ssl.methods.byol.method import BYOL, prediction_loss
from clove_ssl.methods.config import TeacherConfig
from clove_ssl.methods.teacher_student import teacher_momentum

pytestmark = pytest.mark.golden

Arrays = Mapping[str, np.ndarray]


def linear(arrays: Arrays, name: str) -> nn.Linear:
    weight, bias = (torch.from_numpy(arrays[f"step.{name}.{kind}"]) for kind in ("weight", "bias"))
    layer = nn.Linear(weight.shape[1], weight.shape[0], dtype=torch.float64)
    layer.load_state_dict({"weight": weight, "bias": bias})
    return layer


def build(arrays: Arrays, form: Literal["paper", "release"], *, joint: bool = True) -> BYOL:
    momentum = float(arrays["step.m"])
    config = BYOLConfig(
        form=form,
        joint_views=joint,
        teacher=TeacherConfig(momentum=momentum, final_momentum=momentum),
    )
    method = BYOL(config, Passed(arrays["step.view1"].shape[1]))  # type: ignore[arg-type]
    method.encoder.head = linear(arrays, "online")
    method.teacher.module.head = linear(arrays, "target").requires_grad_(False)
    method.predictor = linear(arrays, "predictor")  # type: ignore[assignment]
    return method


def close(actual: Tensor | None, expected: np.ndarray) -> None:
    assert actual is not None
    np.testing.assert_allclose(actual.detach(), expected, rtol=0, atol=1e-9)


def test_the_loss_and_its_gradient_are_the_recorded_ones(golden: Callable[[str], Arrays]) -> None:
    arrays = golden("methods/byol.npz")
    prediction = torch.from_numpy(arrays["loss.pred"]).requires_grad_()
    target = torch.from_numpy(arrays["loss.target"])
    loss = prediction_loss(unit_vectors(prediction), unit_vectors(target))
    loss.backward()
    close(loss, arrays["loss.value"])
    close(prediction.grad, arrays["loss.grad_pred"])


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize(("form", "factor"), [("release", 1.0), ("paper", 2.0)])
def test_a_step_is_the_recorded_one(
    golden: Callable[[str], Arrays],
    form: Literal["paper", "release"],
    factor: float,
    joint: bool,
) -> None:
    arrays = golden("methods/byol.npz")
    method = build(arrays, form, joint=joint)
    views = [torch.from_numpy(arrays[f"step.view{i}"]).requires_grad_() for i in (1, 2)]
    loss = method(batch_of_maps(*views), Progress(0, 10)).loss
    loss.backward()
    close(loss, factor * arrays["step.loss"])
    for i, view in enumerate(views, start=1):
        close(view.grad, factor * arrays[f"step.grad_view{i}"])
    close(method.teacher.module.head.get_parameter("weight"), arrays["step.target_after_weight"])


def test_the_teachers_momentum_follows_the_recorded_schedule(
    golden: Callable[[str], Arrays],
) -> None:
    arrays = golden("methods/byol.npz")
    config = TeacherConfig(momentum=float(arrays["schedule.base_momentum"]))
    total = int(arrays["schedule.total_steps"])
    momenta = [teacher_momentum(config, Progress(int(i), total)) for i in arrays["schedule.step"]]
    np.testing.assert_allclose(momenta, arrays["schedule.teacher_momentum"], rtol=0, atol=1e-9)
