"""The kernel that pools regions from all levels at once against torchvision, level by level.

With ``TRITON_INTERPRET=1`` in the environment the small cases also run on the CPU.
"""

from __future__ import annotations

import pytest
import torch
from builders.gpu_marks import DEVICE, NEEDS_KERNELS, full_size
from torch import Tensor

from clove_ssl.tasks.rcnn.regions.pooling import (
    ALIGNED,
    LEGACY,
    RoIAlignRule,
    assign_levels,
    pool_regions,
)

pytest.importorskip("triton")

pytestmark = NEEDS_KERNELS

STRIDES = (4, 8, 16, 32)


def pyramid(images: int, channels: int, side: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(images, channels, side // s, 2 * side // s) for s in STRIDES]
    maps = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    return [each.to(memory_format=torch.channels_last).requires_grad_() for each in maps]


def scattered(images: int, count: int, side: int) -> Tensor:
    """Boxes of all sizes, some of them without area, some that reach over the border."""
    generator = torch.Generator().manual_seed(1)
    low = side * (1.2 * torch.rand(count, 2, generator=generator) - 0.1)
    size = side * torch.rand(count, 2, generator=generator) ** 3
    size[::5] = 0
    image = torch.randint(images, (count, 1), generator=generator)
    return torch.cat([image, low, low + size], dim=1)


def both(
    maps: list[Tensor], regions: Tensor, levels: Tensor, rule: RoIAlignRule, size: int
) -> list[list[Tensor]]:
    """Results and gradients, by torchvision on the CPU in fp32 and by the kernel."""
    from clove_ssl.tasks.rcnn.regions.pooling_kernel import pool_on_gpu

    plain = [each.detach().float().requires_grad_() for each in maps]
    expected = torch.zeros(len(regions), plain[0].shape[1], size, size)
    for level, (each, stride) in enumerate(zip(plain, STRIDES, strict=False)):
        rows = torch.nonzero(levels == level).squeeze(1)
        part = pool_regions(each, regions[rows], stride=stride, size=size, rule=rule)
        expected = expected.index_copy(0, rows, part)
    here = [each.detach().to(DEVICE).requires_grad_() for each in maps]
    found = pool_on_gpu(
        here,
        regions.to(DEVICE),
        levels.to(DEVICE) if len(maps) > 1 else None,
        stride=STRIDES[0],
        size=size,
        sampling=rule.sampling,
        aligned=rule.aligned,
    )
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2))
    (expected * weights).sum().backward()
    (found.float() * weights.to(DEVICE)).sum().backward()
    return [
        [expected, *(each.grad for each in plain)],
        [each.float().cpu() for each in (found, *(x.grad for x in here))],
    ]


def compare(
    maps: list[Tensor],
    regions: Tensor,
    rule: RoIAlignRule,
    *,
    levels: Tensor,
    size: int,
    off: float,
) -> None:
    expected, found = both(maps, regions, levels, rule, size)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=off, atol=off * theirs.abs().max().item())


@pytest.mark.parametrize("rule", [ALIGNED, LEGACY])
def test_a_tiny_pyramid(rule: RoIAlignRule) -> None:
    sides = torch.tensor([[9.0], [15.0], [33.0], [60.0], [0.0]])
    low = torch.tensor([[3.0, 7.0], [90.0, 2.0], [-5.0, 40.0], [100.0, 30.0], [8.0, 8.0]])
    image = torch.tensor([[0.0], [1.0], [1.0], [0.0], [1.0]])
    regions = torch.cat([image, low, low + sides], dim=1)
    levels = torch.tensor([0, 1, 2, 3, 1])
    maps = pyramid(2, 3, 64, torch.float32)
    compare(maps, regions, rule, levels=levels, size=2, off=1e-5)


def test_a_tiny_map() -> None:
    maps, regions = pyramid(2, 3, 32, torch.float32)[:1], scattered(2, 4, 32)
    compare(maps, regions, ALIGNED, levels=torch.zeros(4), size=2, off=1e-5)


@full_size
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_whole_pyramid(dtype: torch.dtype) -> None:
    off = 1e-4 if dtype == torch.float32 else 2e-2
    regions = scattered(4, 2000, 512)
    levels = assign_levels(regions[:, 1:])
    compare(pyramid(4, 256, 512, dtype), regions, ALIGNED, levels=levels, size=7, off=off)
