"""Pixels that a kernel moves into channels lie where torch puts them."""

from __future__ import annotations

import pytest
import torch
from builders.gpu_marks import DEVICE, NEEDS_KERNELS, full_size

from clove_ssl.backbones.stem import CHANNELS
from clove_ssl.backbones.stem import deep_pixels as deep_pixels_of_torch

pytestmark = NEEDS_KERNELS


def assert_moved_as_by_torch(shape: tuple[int, int, int, int]) -> None:
    from clove_ssl.backbones.stem_kernel import deep_pixels

    images = torch.randn(shape).to(DEVICE).to(memory_format=torch.channels_last)
    moved = deep_pixels(images, channels=CHANNELS, dtype=torch.float32)
    assert torch.equal(moved, deep_pixels_of_torch(images))
    assert moved.is_contiguous(memory_format=torch.channels_last)


def test_tiny_images() -> None:
    assert_moved_as_by_torch((2, 3, 6, 8))


@full_size
@pytest.mark.parametrize("shape", [(64, 3, 160, 160), (3, 3, 96, 224)], ids=str)
def test_images_of_runs(shape: tuple[int, int, int, int]) -> None:
    assert_moved_as_by_torch(shape)
