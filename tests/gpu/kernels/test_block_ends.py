"""The end of a block is handed over twice; gradients have the bits that autograd's own sum gives.

With ``TRITON_INTERPRET=1`` in the environment the tiny cases also run on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from builders.gpu_marks import DEVICE, NEEDS_KERNELS, ON_GPU, full_size
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, Bottleneck

from clove_ssl.backbones import pieces
from clove_ssl.backbones.build import build_backbone
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.layers.fused_norm import activation
from clove_ssl.training.numerics import start_repeatably

pytestmark = NEEDS_KERNELS

TINY = (3, 5, 6, 7)  # an odd side, channels that fill no tile
# Triton's interpreter cuts numbers off for bfloat16, where a GPU rounds them; float16 it rounds.
DTYPES = [torch.float32, torch.bfloat16 if ON_GPU else torch.float16]

Users = Callable[[Tensor, Tensor], Tensor]
"""What two users make of the two maps, as the number whose gradients are asked for."""


def drawn(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    values = torch.randn(shape).to(DEVICE, dtype)
    return values.to(memory_format=torch.channels_last)


def gradients(users: Users, dtype: torch.dtype, *, relu: bool = True) -> list[Tensor | None]:
    """Those of the map, of what is added, of weight and bias."""
    from clove_ssl.layers.fused_norm.launches import NormActivation

    torch.manual_seed(0)
    features, side = (drawn(TINY, dtype).requires_grad_() for _ in range(2))
    norm = nn.BatchNorm2d(TINY[1]).to(DEVICE)
    first, second = NormActivation.apply(features, side, norm.weight, norm.bias, norm, relu)
    assert first.data_ptr() == second.data_ptr()
    users(first, second).backward()
    return [each.grad for each in (features, side, norm.weight, norm.bias)]


def same(mine: list[Tensor | None], theirs: list[Tensor | None]) -> bool:
    return all(
        a is not None and b is not None and torch.equal(a, b)
        for a, b in zip(mine, theirs, strict=True)
    )


def weighted(seed: int, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """A user whose gradients are random numbers."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(TINY, generator=generator).to(DEVICE, dtype)
    return lambda maps: (maps * weights).sum(dtype=torch.float32)


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_tiny_gradients_of_two_users_are_those_of_their_sum(dtype: torch.dtype, relu: bool) -> None:
    one, two = weighted(1, dtype), weighted(2, dtype)
    together = gradients(lambda first, second: one(first) + two(first), dtype, relu=relu)
    apart = gradients(lambda first, second: one(first) + two(second), dtype, relu=relu)
    assert same(apart, together)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tiny_gradients_of_either_user_alone(dtype: torch.dtype) -> None:
    one = weighted(1, dtype)
    by_first = gradients(lambda first, second: one(first), dtype)
    by_second = gradients(lambda first, second: one(second), dtype)
    assert same(by_second, by_first)


def test_tiny_gradients_of_odd_layouts_and_of_three_users() -> None:
    one, two = weighted(1, torch.float32), weighted(2, torch.float32)
    # The gradients of a sum are one number, expanded; of a copy with rows in order, not ours.
    apart = gradients(lambda a, b: a.sum() + one(b.contiguous()) + two(b), torch.float32)
    together = gradients(lambda a, b: a.sum() + (one(a.contiguous()) + two(a)), torch.float32)
    for mine, theirs in zip(apart, together, strict=True):
        torch.testing.assert_close(mine, theirs)


class NoGradients(torch.autograd.Function):
    """A user that has none to give."""

    @staticmethod
    def forward(ctx: object, maps: Tensor) -> Tensor:
        return maps.float().sum()

    @staticmethod
    def backward(ctx: object, outer: Tensor) -> None:
        return None


def test_tiny_maps_whose_users_give_no_gradients_have_none() -> None:
    found = gradients(lambda first, second: NoGradients.apply(second), torch.float32)
    assert found == [None] * 4


def by_one_map(norm: nn.Module, features: Tensor, side: Tensor) -> tuple[Tensor, Tensor]:
    """As if a block's end were handed over once."""
    first, _ = activation.normalize_add_relu(norm, features, side)
    return first, first


def blocks(kind: type[BasicBlock] | type[Bottleneck]) -> list[nn.Module]:
    """Shortcuts that are a norm, the map itself, and a norm of fewer cells."""
    width = 4 * kind.expansion

    def shortcut(channels: int, stride: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width)
        )

    return [
        kind(4, 4, downsample=shortcut(4, 1)),
        kind(width, 4),
        kind(width, 4, 2, downsample=shortcut(width, 2)),
        kind(width, 4),
    ]


def chained(kind: type[BasicBlock] | type[Bottleneck], dtype: torch.dtype) -> list[Tensor]:
    """Results and gradients of some blocks."""
    start_repeatably(0, torch.device(DEVICE), deterministic=True)
    row = blocks(kind)
    network = nn.Sequential(*row).to(DEVICE, memory_format=torch.channels_last)
    inputs = drawn((2, 4, 6, 6), dtype).requires_grad_()
    stretch = pieces.Stretch(pieces.Opening(row[0]), row)
    with torch.autocast(DEVICE, dtype, enabled=dtype != torch.float32):
        result = stretch(inputs)
    result.backward(drawn(tuple(result.shape), result.dtype))
    return [result.detach(), inputs.grad, *(each.grad for each in network.parameters())]


@pytest.fixture
def _fuses_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter's maps are not on a GPU, where alone our kernels are chosen."""

    def lies_channels_last(norm: nn.Module, maps: Tensor) -> bool:
        return maps.is_contiguous(memory_format=torch.channels_last)

    monkeypatch.setattr(activation, "is_fused", lies_channels_last)


@pytest.mark.usefixtures("_fuses_anywhere")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [BasicBlock, Bottleneck])
def test_tiny_blocks_have_the_gradients_of_a_map_handed_over_once(
    kind: type[BasicBlock] | type[Bottleneck], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart = chained(kind, dtype)
    monkeypatch.setattr(pieces, "normalize_add_relu", by_one_map)
    assert same(apart, chained(kind, dtype))


@pytest.mark.usefixtures("_fuses_anywhere")
def test_tiny_blocks_give_their_shortcut_the_second_map() -> None:
    joint = pieces.Joint(BasicBlock(4, 4), BasicBlock(4, 4))
    joint = joint.to(DEVICE, memory_format=torch.channels_last)
    _, side = joint(drawn((2, 4, 6, 6), torch.float32), drawn((2, 4, 6, 6), torch.float32))
    assert side.output_nr == 1


def resnet_gradients() -> list[Tensor | None]:
    """Those of all weights, where one map inside has users besides the next block."""
    start_repeatably(0, torch.device(DEVICE), deterministic=True)
    backbone = build_backbone(BackboneConfig(name="resnet18"))
    backbone = backbone.to(DEVICE, memory_format=torch.channels_last)
    backbone.hand_out(["c4"])
    backbone.fuse()
    with torch.autocast(DEVICE, torch.bfloat16):
        maps = backbone.maps(drawn((16, 3, 96, 96), torch.bfloat16))
    torch.autograd.backward(
        list(maps.values()), [drawn(tuple(each.shape), each.dtype) for each in maps.values()]
    )
    return [weight.grad for weight in backbone.parameters()]


@full_size
def test_a_resnet_has_the_gradients_of_maps_handed_over_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    apart = resnet_gradients()
    monkeypatch.setattr(pieces, "normalize_add_relu", by_one_map)
    assert same(apart, resnet_gradients())
