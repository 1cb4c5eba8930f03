"""Supervised training: the loss is the formula, and impossible options are refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from builders.batches.two_views import two_views
from builders.batches.vector_batches import Passed, batch_of_maps
from builders.tasks.tiny_backbone import TinyBackbone
from torch import Tensor

from clove_ssl.config.views import ViewsConfig
from clove_ssl.errors import UserError
from clove_ssl.methods.base import Progress
from clove_ssl.methods.supervised.config import SupervisedConfig, plain_crop
from clove_ssl.methods.supervised.method import Supervised
from clove_ssl.views.batch import ViewBatch

START = Progress(0, 10)
CLASSES = 5


def config_of(**changes: object) -> SupervisedConfig:
    config = SupervisedConfig(views=replace(plain_crop(), global_size=16), classes=CLASSES)
    return replace(config, **changes)  # type: ignore[arg-type]


def method_of(config: SupervisedConfig) -> Supervised:
    torch.manual_seed(0)
    return Supervised(config, TinyBackbone()).double()  # type: ignore[arg-type]


def batch_of(config: SupervisedConfig) -> ViewBatch:
    return replace(two_views(config), labels=torch.tensor([3, 0, 3, 4]))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_the_smoothed_cross_entropy(smoothing: float) -> None:
    config = config_of(label_smoothing=smoothing)
    method, batch = method_of(config), batch_of(config)
    output = method(batch, START)
    logits = method.classifier(method.backbone.features(batch.views[0].pixels).mean((2, 3)))
    losses, right = [], 0
    for row, label in zip(logits.tolist(), batch.labels.tolist(), strict=True):
        total = sum(torch.tensor(row).double().exp()).item()
        surprise = [torch.tensor(total).log().item() - value for value in row]
        target = [smoothing / CLASSES + (1 - smoothing) * (k == label) for k in range(CLASSES)]
        losses.append(sum(t * s for t, s in zip(target, surprise, strict=True)))
        right += row.index(max(row)) == label
    assert output.loss.item() == pytest.approx(sum(losses) / len(losses), abs=1e-6)
    assert output.metrics["accuracy"].item() == pytest.approx(right / len(losses))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_has_the_gradient_of_its_value(smoothing: float) -> None:
    config = config_of(label_smoothing=smoothing)
    method = Supervised(config, Passed(6)).double()  # type: ignore[arg-type]
    maps = torch.randn(4, 6, 2, 2, dtype=torch.float64, requires_grad=True)

    def loss(maps: Tensor) -> Tensor:
        return method(replace(batch_of_maps(maps), labels=batch_of(config).labels), START).loss

    assert torch.autograd.gradcheck(loss, (maps,))


def test_equal_answers_cost_the_logarithm_of_the_classes() -> None:
    method = method_of(config_of())
    with torch.no_grad():
        method.classifier.weight.zero_()
        method.classifier.bias.zero_()
    output = method(batch_of(config_of()), START)
    assert output.loss.item() == pytest.approx(math.log(CLASSES))


def test_the_spread_of_equal_answers_is_zero() -> None:
    method = method_of(config_of())
    output = method(batch_of(config_of()), START)
    assert method.health(output)["feature_std"] > 0
    same = replace(output, artifacts={"logits": output.artifacts["logits"][:1].expand(4, -1)})
    assert method.health(same)["feature_std"] < 1e-6


def test_the_number_of_classes_comes_from_the_data() -> None:
    assert SupervisedConfig().for_classes(7).classes == 7
    assert SupervisedConfig(classes=7).for_classes(7).classes == 7
    with pytest.raises(UserError, match="10, but the data has 7"):
        SupervisedConfig(classes=10).for_classes(7)


def test_impossible_options_are_refused() -> None:
    with pytest.raises(UserError, match="global-count 1"):
        SupervisedConfig(views=ViewsConfig())
    with pytest.raises(UserError, match="at least 2 classes"):
        method_of(SupervisedConfig())
