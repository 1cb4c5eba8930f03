"""The kernel that stacks images of different sizes against copies one by one: the same bits.

With ``TRITON_INTERPRET=1`` in the environment the small case also runs on the CPU.
"""

from __future__ import annotations

import pytest
import torch
from builders.gpu_marks import DEVICE, NEEDS_KERNELS, full_size
from torch import Tensor

from clove_ssl.tasks.rcnn.pixels import PIXEL_MEAN, PIXEL_STD, _stack_on_gpu, stack_images

pytest.importorskip("triton")

pytestmark = NEEDS_KERNELS


def photos(*sizes: tuple[int, int]) -> list[Tensor]:
    """Noise, every second photo with its channels side by side, as decoders give them."""
    generator = torch.Generator().manual_seed(0)
    noise = [
        torch.randint(256, (3, *size), dtype=torch.uint8, generator=generator) for size in sizes
    ]
    return [
        each.permute(1, 2, 0).contiguous().permute(2, 0, 1) if number % 2 else each
        for number, each in enumerate(noise)
    ]


def compare(images: list[Tensor], *, multiple: int) -> None:
    expected = stack_images(images, multiple=multiple)
    room = torch.empty_like(expected, memory_format=torch.channels_last).to(DEVICE)
    numbers = torch.tensor([*PIXEL_MEAN, *PIXEL_STD], device=DEVICE)
    found = _stack_on_gpu([each.to(DEVICE) for each in images], room.fill_(9), numbers)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("multiple", [1, 32])
def test_tiny_photos(multiple: int) -> None:
    compare(photos((5, 7), (40, 33), (1, 50)), multiple=multiple)


@full_size
def test_a_batch_of_photos() -> None:
    compare(photos(*((480 + 7 * n, 800 - 5 * n) for n in range(16))), multiple=32)


@full_size
def test_a_gpu_stacks_by_the_kernel() -> None:
    images = photos((50, 70), (64, 33))
    here, there = images, [each.to(DEVICE) for each in images]
    assert torch.equal(stack_images(there, multiple=32).cpu(), stack_images(here, multiple=32))
