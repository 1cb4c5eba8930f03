"""Attention, projector and teacher against recordings of the released code."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from clove_ssl.methods.clove.attention import PlainSelfAttention
from clove_ssl.methods.heads import ConvProjector
from clove_ssl.methods.teacher_student import Teacher

pytestmark = pytest.mark.golden

Golden = Callable[[str], Mapping[str, np.ndarray]]


@pytest.fixture
def arrays(golden: Golden) -> Mapping[str, np.ndarray]:
    return golden("methods/clove_network.npz")


def assert_close(actual: torch.Tensor, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual.detach(), expected, rtol=0, atol=1e-9)


def recorded_attention(arrays: Mapping[str, np.ndarray]) -> PlainSelfAttention:
    attention = PlainSelfAttention(arrays["attn.x"].shape[1], int(arrays["attn.heads"])).double()
    names = {"qkv": "in_proj", "out": "out_proj"}
    attention.load_state_dict(
        {
            f"{mine}.{kind}": torch.from_numpy(arrays[f"attn.{theirs}_{kind}"])
            for mine, theirs in names.items()
            for kind in ("weight", "bias")
        }
    )
    return attention


def test_plain_attention_and_its_gradients_are_the_recorded_ones(
    arrays: Mapping[str, np.ndarray],
) -> None:
    attention = recorded_attention(arrays)
    x = torch.from_numpy(arrays["attn.x"]).requires_grad_()
    out = attention(x)
    unit = F.normalize(out, dim=1)
    (unit * torch.from_numpy(arrays["attn.probe"])).sum().backward()
    assert_close(out, arrays["attn.out"])
    assert_close(unit, arrays["attn.out_unit"])
    assert_close(x.grad, arrays["attn.grad_x"])
    assert_close(attention.qkv.weight.grad, arrays["attn.grad_in_proj_weight"])
    assert_close(attention.qkv.bias.grad, arrays["attn.grad_in_proj_bias"])
    assert_close(attention.out.weight.grad, arrays["attn.grad_out_proj_weight"])
    assert_close(attention.out.bias.grad, arrays["attn.grad_out_proj_bias"])


def test_attention_weights_average_to_the_recorded_ones(arrays: Mapping[str, np.ndarray]) -> None:
    weights = recorded_attention(arrays).weights(torch.from_numpy(arrays["attn.x"]))
    assert_close(weights.mean(1), arrays["attn.weights_head_mean"])


def test_projector_gradients_and_running_statistics_are_the_recorded_ones(
    arrays: Mapping[str, np.ndarray],
) -> None:
    hidden, in_channels = arrays["proj.linear1_weight"].shape[:2]
    projector = ConvProjector(in_channels, hidden, len(arrays["proj.linear2_weight"])).double()
    names = {"conv1": "linear1", "norm1": "bn1", "conv2": "linear2", "norm2": "bn2"}
    renamed = {key: key.replace(".", "_") for key in projector.state_dict()}
    for mine, theirs in names.items():
        renamed = {key: name.replace(mine, theirs) for key, name in renamed.items()}
    projector.load_state_dict(
        {key: torch.from_numpy(arrays[f"proj.{name}"]) for key, name in renamed.items()}
    )
    x = torch.from_numpy(arrays["proj.x"]).requires_grad_()
    out = projector(x)
    (out * torch.from_numpy(arrays["proj.probe"])).sum().backward()
    assert_close(out, arrays["proj.out"])
    assert_close(x.grad, arrays["proj.grad_x"])
    for key, name in renamed.items():
        if "running" in key:
            assert_close(projector.state_dict()[key], arrays[f"proj.after_{name}"])


def test_teacher_follows_its_student_as_recorded(arrays: Mapping[str, np.ndarray]) -> None:
    before, student = (torch.from_numpy(arrays[f"ema.{n}"]) for n in ("teacher_before", "student"))
    layer = nn.Linear(before.shape[1], before.shape[0], bias=False).double()
    layer.load_state_dict({"weight": before})
    teacher = Teacher(layer)
    layer.load_state_dict({"weight": student})
    for number, momentum in enumerate(arrays["ema.m"].tolist(), start=1):
        teacher.update(layer, momentum)
        assert_close(teacher.module.weight, arrays[f"ema.teacher_after_{number}"])
