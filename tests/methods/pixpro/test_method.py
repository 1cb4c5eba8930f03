"""PixPro: the formula, and who is compared with whom."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from builders.batches.two_views import two_views
from builders.tasks.tiny_backbone import TinyBackbone
from references.methods.pixpro import attraction, propagate
from torch import nn

from clove_ssl.config.views import ViewsConfig
from clove_ssl.errors import UserError
from clove_ssl.losses import matched_cosine_loss
from clove_ssl.methods.base import Progress
from clove_ssl.methods.config import ProjectorConfig, TeacherConfig
from clove_ssl.methods.pixpro.config import InstanceConfig, PixProConfig
from clove_ssl.methods.pixpro.method import PixPro
from clove_ssl.methods.pixpro.propagation import PixelPropagation
from clove_ssl.views.geometry import match_cells

START = Progress(step=0, total_steps=10)
INSTANCE = InstanceConfig(weight=1.0, hidden=10, out=5)


def config_of(**changes: object) -> PixProConfig:
    config = PixProConfig(
        views=ViewsConfig(global_size=16, local_count=0),
        projector=ProjectorConfig(hidden=10, out=8, bias=True, last_norm="none"),
        teacher=TeacherConfig(momentum=1.0),  # a teacher that stands still can be compared with
    )
    return replace(config, **changes)  # type: ignore[arg-type]


def method_of(config: PixProConfig) -> PixPro:
    torch.manual_seed(0)
    method = PixPro(config, TinyBackbone()).double()  # type: ignore[arg-type]
    with torch.no_grad():  # a teacher unlike its student, so that mistaking them shows
        for parameter in method.teacher.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return method


@pytest.mark.parametrize("power", [2.0, 1.0, 0.5])
def test_propagation_is_the_formula(power: float) -> None:
    torch.manual_seed(1)
    module = PixelPropagation(5, power=power).double()
    x = torch.randn(2, 5, 2, 3, dtype=torch.float64)
    assert isinstance(module.transform, nn.Conv2d)
    weight, bias = module.transform.weight[:, :, 0, 0], module.transform.bias
    expected = propagate(x, weight.detach(), bias.detach(), power)
    torch.testing.assert_close(module(x).detach(), expected, rtol=0, atol=1e-12)


def test_cells_at_right_angles_keep_to_themselves() -> None:
    x = torch.tensor([[3.0, 0.0], [0.0, 4.0]], dtype=torch.float64)[None, :, None]  # (1, 2, 1, 2)
    y = PixelPropagation(2, transform="none")(x)
    assert torch.equal(y, torch.eye(2, dtype=torch.float64)[None, :, None])


def test_a_cell_at_45_degrees_weighs_half_with_power_two() -> None:
    x = torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=torch.float64)[None, :, None]
    y = PixelPropagation(2, power=2, transform="none")(x)
    half = math.sqrt(0.5)
    torch.testing.assert_close(
        y[0, :, 0, 0], torch.tensor([1 + half / 2, half / 2], dtype=torch.float64)
    )


def test_opposite_cells_do_not_cancel_each_other() -> None:
    x = torch.tensor([[1.0, -1.0]], dtype=torch.float64)[None, :, None]  # (1, 1, 1, 2)
    y = PixelPropagation(1, power=1, transform="none")(x)
    assert torch.equal(y, x)


def test_mixed_precision_does_not_reach_the_propagation() -> None:
    module, x = PixelPropagation(5, transform="none"), torch.randn(2, 5, 3, 3)
    expected = module(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(module(x), expected)


@pytest.mark.parametrize("power", [2.0, 1.0, 0.5])
def test_gradients_of_propagation_and_loss_are_right(power: float) -> None:
    torch.manual_seed(2)
    module = PixelPropagation(4, power=power).double()
    x, target = torch.randn(2, 2, 4, 2, 2, dtype=torch.float64)
    matches = torch.rand(2, 4, 4) < 0.5

    def loss(x: torch.Tensor) -> torch.Tensor:
        return matched_cosine_loss(F.normalize(module(x), dim=1), target, matches)

    assert torch.autograd.gradcheck(loss, x.requires_grad_())


def test_the_loss_sums_both_directions_of_separately_encoded_views() -> None:
    config = config_of()
    method, batch = method_of(config), two_views(config)
    output = method(batch, START)
    boxes = [view.geometry.signed_boxes("per-axis") for view in batch.views]
    students = [method.propagation(method.encoder(v.pixels).cells).detach() for v in batch.views]
    targets = [method.teacher.module(v.pixels).cells.detach() for v in batch.views]
    expected = 0.0
    for here, there in ((0, 1), (1, 0)):
        matches = match_cells(boxes[here], boxes[there], (4, 4), (4, 4), 0.7)
        assert matches.any()
        expected += attraction(students[here], targets[there], matches)
    assert output.loss.item() == pytest.approx(expected, abs=1e-6)


def test_the_instance_branch_adds_both_directions() -> None:
    config = config_of(instance=INSTANCE)
    method, batch = method_of(config), two_views(config)
    assert method.predictor is not None
    output = method(batch, START)
    cells = -2 * 2 * output.metrics["cos_positive"]  # every image has a match in both directions
    expected = cells.item()
    guesses = [method.predictor(method.encoder(v.pixels).instance) for v in batch.views]
    targets = [method.teacher.module(v.pixels).instance for v in batch.views]
    for here, there in ((0, 1), (1, 0)):
        a, b = guesses[here].mean((2, 3)), targets[there].mean((2, 3))
        expected += -2 * F.cosine_similarity(a, b).mean().item()
    assert output.metrics["images_without_match"] == 0
    assert output.loss.item() == pytest.approx(expected, abs=1e-6)


def test_images_without_a_match_count_as_zero() -> None:
    config = config_of()
    output = method_of(config)(two_views(config, apart=True), START)
    assert output.loss == 0
    assert output.metrics["images_without_match"] == 1


def test_health_tells_spread_from_collapse() -> None:
    config = config_of()
    method = method_of(config)
    figures = method.health(method(two_views(config), START))
    assert figures["effective_rank"] > 2
    assert figures["teacher_distance"] > 0
    with torch.no_grad():
        method.encoder.projector.conv2.weight.zero_()
    collapsed = method.health(method(two_views(config), START))
    assert collapsed["feature_std"] < 1e-6 < figures["feature_std"]


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UserError, match="local-count 0"):
        PixProConfig(views=ViewsConfig())
