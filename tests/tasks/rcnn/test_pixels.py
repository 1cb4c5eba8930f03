"""What goes into a detector and how it is drawn from: pixels, priorities, precise statistics."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from clove_ssl.tasks.precise_norm import estimate_statistics
from clove_ssl.tasks.rcnn.draws import RandomPriorities
from clove_ssl.tasks.rcnn.pixels import PIXEL_MEAN, PIXEL_STD, stack_images


def test_pixels_are_normalised_first_and_padded_with_zeros_then() -> None:
    images = [
        torch.full((3, 5, 7), 200, dtype=torch.uint8),
        torch.zeros(3, 9, 4, dtype=torch.uint8),
    ]
    pixels = stack_images(images, multiple=4)
    assert pixels.shape == (2, 3, 12, 8)
    expected = (200 - torch.tensor(PIXEL_MEAN)) / torch.tensor(PIXEL_STD)  # red, green, blue
    torch.testing.assert_close(pixels[0, :, 4, 6], expected)
    torch.testing.assert_close(
        pixels[1, :, 8, 3], -torch.tensor(PIXEL_MEAN) / torch.tensor(PIXEL_STD)
    )
    assert pixels[0, :, 5:].abs().max() == pixels[0, :, :, 7:].abs().max() == 0
    assert pixels[1, :, 9:].abs().max() == pixels[1, :, :, 4:].abs().max() == 0


def test_without_a_multiple_the_largest_sides_decide() -> None:
    images = [torch.zeros(3, 5, 7, dtype=torch.uint8), torch.zeros(3, 9, 4, dtype=torch.uint8)]
    assert stack_images(images, multiple=1).shape == (2, 3, 9, 7)


def priorities(keys: list[int], count: int = 1000, *, seed: int = 0, step: int = 0) -> Tensor:
    draw = RandomPriorities(seed)
    starts = draw.starts(keys, step=step, stage="anchors")
    return draw.numbers(torch.tensor(starts), count)


def test_priorities_are_those_of_splitmix() -> None:
    start = int(
        np.random.Philox(
            key=np.array([3, 12], np.uint64), counter=np.array([0, 0, 9, 5], np.uint64)
        ).random_raw()
    )
    numbers = []
    for place in (1, 2, 3):
        state = (start + place * 0x9E3779B97F4A7C15) % 2**64
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
        numbers.append((state ^ state >> 31) % 2**63)
    draw = RandomPriorities(3)
    drawn = draw.numbers(torch.tensor(draw.starts([2, 9], step=5, stage="regions")), 3)
    assert drawn[1].tolist() == numbers


def test_priorities_look_up_the_same_numbers_in_any_batch() -> None:
    together, alone = priorities([4, 8, 6]), priorities([8], 50)
    assert torch.equal(together[1, :50], alone[0])
    others = [priorities([8], seed=1), priorities([8], step=1), priorities([9])]
    assert all(not torch.equal(each[0], together[1]) for each in others)


def test_priorities_choose_every_candidate_equally_often() -> None:
    chosen = priorities(list(range(4000)), 20).argsort(dim=1)[:, :5]
    counts = torch.bincount(chosen.flatten(), minlength=20)
    # 4000 draws of 5 of 20: 1000 each, with a standard deviation of 27.
    assert (counts - 1000).abs().max() < 5 * 27
    assert (priorities([0, 1]) >= 0).all()


class Together:
    """Two processes that run one after the other: the second adds what the first left."""

    def __init__(self) -> None:
        self.left: list[Tensor] = []
        self.place: int | None = None

    def sum(self, values: Tensor) -> Tensor:
        if self.place is None:
            self.left.append(values.clone())
            return values
        values += self.left[self.place]
        self.place += 1
        return values


def passes(layer: nn.Module, batches: list[Tensor]) -> Iterator[None]:
    for batch in batches:
        layer(batch)
        yield


def test_precise_statistics_are_those_of_all_values_together() -> None:
    batches = [torch.randn(n, 3, 4, 5) * n + n for n in (1, 2, 5)]
    layer = nn.BatchNorm2d(3)
    assert estimate_statistics(layer, passes(layer, batches), Together()) == 3
    values = torch.cat([each.movedim(1, 0).flatten(1) for each in batches], dim=1).double()
    expected = (values.mean(dim=1).float(), values.var(dim=1, correction=0).float())
    torch.testing.assert_close((layer.running_mean, layer.running_var), expected)
    assert layer.training
    assert not layer._forward_pre_hooks


def test_layers_that_did_not_run_and_frozen_layers_keep_their_statistics() -> None:
    layers = nn.ModuleList(nn.BatchNorm2d(2) for _ in range(3))
    layers[2].eval()
    both = nn.Sequential(layers[0], layers[2])
    estimate_statistics(layers, passes(both, [torch.randn(2, 2, 3, 3)]), Together())
    assert layers[0].running_mean.abs().max() > 0
    assert layers[1].running_mean.abs().max() == layers[2].running_mean.abs().max() == 0


def test_a_norm_that_runs_twice_in_a_pass_is_refused() -> None:
    layer = nn.BatchNorm2d(2)
    with pytest.raises(ValueError, match="runs twice"):
        estimate_statistics(
            layer, passes(nn.Sequential(layer, layer), [torch.randn(2, 2, 3, 3)]), Together()
        )
    assert not layer._forward_pre_hooks
