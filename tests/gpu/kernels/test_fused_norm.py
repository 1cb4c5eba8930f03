"""Batch norm by our kernels against torch's own layers, forward and backward.

With ``TRITON_INTERPRET=1`` in the environment the tiny cases also run on the CPU.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import pytest
import torch
import torch.nn.functional as F
from builders.gpu_marks import DEVICE, NEEDS_KERNELS, full_size
from torch import Tensor, nn

pytestmark = NEEDS_KERNELS

TINY = (3, 5, 6, 7)  # an odd side, channels that fill no tile
# Odd and even sides, lines of one cell, more lines than a program takes, two blocks of channels.
POOLED = [(7, 3, 1, 1), (5, 4, 1, 6), (2, 4, 21, 1), (3, 8, 2, 2), (2, 64, 9, 11), (1, 70, 18, 4)]
LARGE = [(64, 64, 80, 80), (128, 512, 5, 5), (512, 2048, 3, 3), (16, 96, 33, 31)]


class Case(NamedTuple):
    """What follows the norm."""

    relu: bool = False
    adds: bool = False
    pools: bool = False
    affine: bool = True


CASES = {
    "plain": Case(),
    "bare": Case(affine=False),
    "relu": Case(relu=True),
    "added": Case(adds=True),
    "added-relu": Case(relu=True, adds=True),
    "pooled": Case(relu=True, pools=True),
}


class Results(NamedTuple):
    """Everything that a step of a layer leaves behind."""

    out: Tensor
    inner: Tensor
    side: Tensor | None
    weight: Tensor | None
    bias: Tensor | None
    mean: Tensor | None
    variance: Tensor | None
    batches: Tensor | None


def layer(channels: int, case: Case) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels, affine=case.affine)
    if case.affine:
        nn.init.normal_(norm.weight)  # also negative ones, which turn the order of values around
        nn.init.normal_(norm.bias)
    return norm


def by_torch(norm: nn.BatchNorm2d, case: Case, features: Tensor, side: Tensor | None) -> Tensor:
    out = norm(features)
    if side is not None:
        out = out + side
    out = F.relu(out) if case.relu else out
    return F.max_pool2d(out, 3, stride=2, padding=1) if case.pools else out


def by_kernels(norm: nn.BatchNorm2d, case: Case, features: Tensor, side: Tensor | None) -> Tensor:
    from clove_ssl.layers.fused_norm.launches import NormActivation, NormPool

    if case.pools:
        return cast(Tensor, NormPool.apply(features, norm.weight, norm.bias, norm, None))
    made = NormActivation.apply(features, side, norm.weight, norm.bias, norm, case.relu)
    return cast(Tensor, made if side is None else made[0])


def step(shape: tuple[int, ...], case: Case, way: str, dtype: torch.dtype) -> Results:
    torch.manual_seed(0)
    norm = layer(shape[1], case)
    values = (3.0 + 2.0 * torch.randn(shape)).to(dtype)  # far from 0, where squares lose digits
    beside = torch.randn(shape).to(dtype) if case.adds else None
    return step_of(norm, values, beside, case, way)


def step_of(
    norm: nn.BatchNorm2d, values: Tensor, beside: Tensor | None, case: Case, way: str
) -> Results:
    dtype = values.dtype
    wide = torch.float64 if way == "torch" else dtype  # the truth has more digits than either
    if way == "torch":
        norm = norm.double()
    norm = norm.to(DEVICE)

    def ready(tensor: Tensor) -> Tensor:
        tensor = tensor.to(DEVICE, wide).to(memory_format=torch.channels_last)
        return tensor.requires_grad_()

    features, side = ready(values), None if beside is None else ready(beside)
    out = (by_torch if way == "torch" else by_kernels)(norm, case, features, side)
    torch.manual_seed(1)
    out.backward(torch.randn(out.shape).to(dtype).to(DEVICE, wide))
    assert features.grad is not None
    weight, bias = (p.grad if p is not None else None for p in (norm.weight, norm.bias))
    return Results(
        out.detach(),
        features.grad,
        side.grad if side is not None else None,
        weight,
        bias,
        norm.running_mean,
        norm.running_var,
        norm.num_batches_tracked,
    )


def assert_near(found: Results, truth: Results, *, tolerance: float) -> None:
    for name, mine, theirs in zip(Results._fields, found, truth, strict=True):
        assert (mine is None) == (theirs is None), name
        if mine is not None and theirs is not None:
            # Of the whole: among millions of values some lie so near 0 that a ReLU may pass them.
            error = (mine.double() - theirs.double()).norm() / theirs.double().norm()
            assert error < tolerance, f"{name}: {float(error):.2e}"


@pytest.mark.parametrize("name", CASES)
def test_tiny_maps_are_normalised_as_by_torch(name: str) -> None:
    case = CASES[name]
    found = step(TINY, case, "kernels", torch.float32)
    assert_near(found, step(TINY, case, "torch", torch.float32), tolerance=2e-5)


@pytest.mark.parametrize("shape", POOLED, ids=str)
def test_tiny_maps_of_any_sides_are_pooled_as_by_torch(shape: tuple[int, ...]) -> None:
    found = step(shape, CASES["pooled"], "kernels", torch.float32)
    assert_near(found, step(shape, CASES["pooled"], "torch", torch.float32), tolerance=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tiny_maps_of_few_values_give_their_gradient_to_the_first_of_equal_ones(
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(0)
    values = torch.randn(3, 4, 9, 8).round().to(dtype)
    results = []
    for way in ("kernels", "torch"):
        norm = nn.BatchNorm2d(4)
        with torch.no_grad():
            # A factor of 0 makes all values equal; the last channel has none above 0.
            norm.weight.copy_(torch.tensor([1.0, -1.0, 0.0, 0.1]))
            norm.bias.copy_(torch.tensor([0.0, 0.0, 1.0, -9.0]))
        results.append(step_of(norm, values, None, CASES["pooled"], way))
    assert_near(*results, tolerance=2e-5 if dtype == torch.float32 else 5e-3)
    assert not results[0].out[:, 3].any()


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["relu", "pooled"])
def test_tiny_maps_show_what_is_not_finite(name: str, broken: float) -> None:
    torch.manual_seed(0)
    values = torch.randn(2, 3, 6, 5)
    values[0, 1, 2, 3] = broken
    found = step_of(nn.BatchNorm2d(3), values, None, CASES[name], "kernels")
    for tensor in (found.out, found.inner):
        assert tensor[:, 1].isnan().all()
        assert tensor[:, ::2].isfinite().all()


@full_size
@pytest.mark.parametrize("shape", LARGE, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_maps_of_networks_are_normalised_as_by_torch(name: str, shape: tuple[int, ...]) -> None:
    case = CASES[name]
    found = step(shape, case, "kernels", torch.float32)
    assert_near(found, step(shape, case, "torch", torch.float32), tolerance=3e-4)


@full_size
@pytest.mark.parametrize("name", ["relu", "added-relu", "pooled"])
def test_the_same_map_gives_the_same_bits(name: str) -> None:
    first, second = (step(LARGE[0], CASES[name], "kernels", torch.bfloat16) for _ in range(2))
    for mine, theirs in zip(first, second, strict=True):
        assert mine is None or torch.equal(mine, theirs)
