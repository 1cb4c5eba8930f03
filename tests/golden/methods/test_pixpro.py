"""PixPro against numbers recorded from its released code."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from builders.batches.two_views import RecordedGeometry
from builders.batches.vector_batches import Passed
from torch import Tensor, nn

from clove_ssl.losses import matched_cosine_loss
from clove_ssl.methods.base import Progress
from clove_ssl.methods.config import ProjectorConfig, TeacherConfig
from clove_ssl.methods.pixpro.config import InstanceConfig, PixProConfig
from clove_ssl.methods.pixpro.method import PixPro
from clove_ssl.methods.pixpro.propagation import PixelPropagation
from clove_ssl.methods.teacher_student import teacher_momentum
from clove_ssl.views.batch import View, ViewBatch
from clove_ssl.views.geometry import match_cells

pytestmark = pytest.mark.golden

Arrays = Mapping[str, np.ndarray]


def close(actual: Tensor | None, expected: np.ndarray, atol: float) -> None:
    assert actual is not None
    np.testing.assert_allclose(actual.detach(), expected, rtol=0, atol=atol)


def tensors(arrays: Arrays, group: str) -> dict[str, Tensor]:
    prefix = f"{group}."
    return {
        name.removeprefix(prefix): torch.from_numpy(np.asarray(value))
        for name, value in arrays.items()
        if name.startswith(prefix)
    }


@pytest.mark.parametrize("group", ["ppm2", "ppm1", "ppm05"])
def test_propagation_and_its_gradients_are_the_recorded_ones(
    golden: Callable[[str], Arrays], group: str
) -> None:
    recorded = tensors(golden("methods/pixpro.npz"), group)
    module = PixelPropagation(recorded["x"].shape[1], power=float(recorded["power"])).double()
    module.load_state_dict(
        {"transform.weight": recorded["weight"], "transform.bias": recorded["bias"]}
    )
    x = recorded["x"].requires_grad_()
    y = module(x)
    (y * recorded["probe"]).sum().backward()
    close(y, recorded["y"].numpy(), 1e-9)
    close(x.grad, recorded["grad_x"].numpy(), 1e-9)
    assert isinstance(module.transform, nn.Conv2d)
    close(module.transform.weight.grad, recorded["grad_weight"].numpy(), 1e-9)


def test_matches_loss_and_gradients_are_the_recorded_ones(
    golden: Callable[[str], Arrays],
) -> None:
    recorded = tensors(golden("methods/pixpro.npz"), "loss")
    first, second, grid = recorded["coord1"], recorded["coord2"], (7, 7)
    there = match_cells(first, second, grid, grid, float(recorded["ratio"]))
    back = match_cells(second, first, grid, grid, float(recorded["ratio"]))
    assert torch.equal(there, recorded["mask12"].bool())
    assert torch.equal(back, recorded["mask21"].bool())
    q1, q2, k1 = (recorded[name].requires_grad_() for name in ("q1", "q2", "k1"))
    l12 = matched_cosine_loss(q1, recorded["k2"], there)
    l21 = matched_cosine_loss(q2, k1, back)
    (l12 + l21).backward()
    close(l12, recorded["l12"].numpy(), 2e-8)
    close(l21, recorded["l21"].numpy(), 2e-8)
    close(l12 + l21, recorded["total"].numpy(), 2e-8)
    for tensor, name in ((q1, "grad_q1"), (q2, "grad_q2"), (k1, "grad_k1")):
        close(tensor.grad, recorded[name].numpy(), 2e-8)


def convolution(recorded: dict[str, Tensor], name: str) -> nn.Conv2d:
    """The recorded run has single 1x1 convolutions in the place of its heads."""
    weight = recorded[f"{name}_weight"]
    module = nn.Conv2d(weight.shape[1], len(weight), 1).double()
    module.load_state_dict({"weight": weight, "bias": recorded[f"{name}_bias"]})
    return module


def recorded_method(recorded: dict[str, Tensor], *, instance: bool) -> PixPro:
    channels = recorded["x1"].shape[1]
    config = PixProConfig(
        projector=ProjectorConfig(hidden=4, out=channels, bias=True, last_norm="none"),
        instance=InstanceConfig(weight=float(instance), hidden=4, out=channels),
    )
    method = PixPro(config, Passed(channels)).double()  # type: ignore[arg-type]
    for encoder, mark in ((method.encoder, ""), (method.teacher.module, "_k")):
        encoder.projector = convolution(recorded, f"projector{mark}")
        if instance:
            encoder.instance_projector = convolution(recorded, f"projector_instance{mark}")
    method.propagation.transform = convolution(recorded, "value_transform")
    if instance:
        method.predictor = convolution(recorded, "predictor")  # type: ignore[assignment]
    method.teacher.requires_grad_(False)
    return method


@pytest.mark.parametrize("group", ["ins0", "ins1"])
def test_a_forward_pass_with_its_teacher_update_is_the_recorded_one(
    golden: Callable[[str], Arrays], group: str
) -> None:
    recorded = tensors(golden("methods/pixpro_step.npz"), group)
    method = recorded_method(recorded, instance=group == "ins1")
    maps = [recorded[name].requires_grad_() for name in ("x1", "x2")]
    views = tuple(
        View(pixels, RecordedGeometry(recorded[f"coord{number}"]), "global")  # type: ignore[arg-type]
        for number, pixels in enumerate(maps, start=1)
    )
    progress = Progress(int(recorded["step"]), int(recorded["total_steps"]))
    output = method(ViewBatch(views, torch.arange(len(maps[0]))), progress)
    output.loss.backward()
    close(output.loss, recorded["loss"].numpy(), 2e-8)
    for pixels, name in zip(maps, ("grad_x1", "grad_x2"), strict=True):
        close(pixels.grad, recorded[name].numpy(), 2e-8)
    student, teacher = method.encoder.projector, method.teacher.module.projector
    assert isinstance(student, nn.Conv2d)
    assert isinstance(teacher, nn.Conv2d)
    close(student.weight.grad, recorded["grad_projector_weight"].numpy(), 2e-8)
    close(teacher.weight, recorded["after_projector_k_weight"].numpy(), 1e-9)


def test_the_teachers_momentum_is_the_recorded_one(golden: Callable[[str], Arrays]) -> None:
    arrays = golden("methods/pixpro_step.npz")
    config = TeacherConfig(momentum=float(arrays["momentum.base"]))
    total = int(arrays["momentum.total"])
    found = [teacher_momentum(config, Progress(int(s), total)) for s in arrays["momentum.step"]]
    np.testing.assert_allclose(found, arrays["momentum.value"], rtol=0, atol=1e-12)
