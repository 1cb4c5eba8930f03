"""Convolutions that get their sizes from a ladder give what plain ones give."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from builders.tasks.tiny_detectors import tiny_batch, tiny_detector
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from clove_ssl.layers import ladder
from clove_ssl.layers.ladder import LadderConv2d, by_rows, put_on_ladder, rung
from clove_ssl.tasks.rcnn.detector import Detector


@contextmanager
def planned_by_size() -> Iterator[set[tuple[int, ...]]]:
    """As on a GPU, and for few rows as well; gives the shapes that are convolved."""
    shapes: set[tuple[int, ...]] = set()
    plain = nn.Conv2d._conv_forward

    def seen(layer: nn.Conv2d, maps: Tensor, *others: object) -> Tensor:
        shapes.add(tuple(maps.shape))
        return plain(layer, maps, *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ladder, "plans_by_size", lambda maps: True)
        patch.setattr(ladder, "FEW_ROWS", 0)
        patch.setattr(nn.Conv2d, "_conv_forward", seen)
        yield shapes


@given(size=st.integers(0, 5000), per_octave=st.sampled_from([4, 16]))
def test_a_rung_is_the_nearest_one_above(size: int, per_octave: int) -> None:
    found = rung(size, per_octave=per_octave)
    assert size <= found <= size * (1 + 1 / per_octave)
    assert rung(found, per_octave=per_octave) == found


def test_an_octave_has_as_many_rungs_as_it_should() -> None:
    assert {rung(size, per_octave=4) for size in range(512, 1024)} == {512, 640, 768, 896, 1024}


@settings(deadline=None, max_examples=25)
@given(
    sides=st.tuples(st.integers(33, 80), st.integers(33, 80)),
    kernel=st.sampled_from([1, 3, 7]),
    stride=st.sampled_from([1, 2]),
    dilation=st.sampled_from([1, 2]),
)
def test_a_convolution_gives_the_same_on_the_ladder(
    sides: tuple[int, int], kernel: int, stride: int, dilation: int
) -> None:
    torch.manual_seed(0)
    options = {"stride": stride, "padding": kernel // 2, "dilation": dilation}
    layer = nn.Conv2d(2, 3, kernel, **options).double()
    maps = torch.rand(9, 2, *sides, dtype=torch.float64)
    plain = layer(maps)
    put_on_ladder(layer)
    with planned_by_size() as shapes:
        torch.testing.assert_close(layer(maps), plain, rtol=1e-12, atol=1e-12)
    (shape,) = shapes
    assert shape == (10, 2, *(rung(side, per_octave=16) for side in sides))


@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_of_single_cells_is_a_product(
    stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 4, 1, stride=stride).double()
    maps = torch.rand(2, 3, 9, 6, dtype=torch.float64)
    plain = layer(maps)
    put_on_ladder(layer)
    monkeypatch.setattr(ladder, "in_half_precision", lambda maps: True)
    with planned_by_size() as shapes:
        torch.testing.assert_close(layer(maps), plain, rtol=1e-12, atol=1e-12)
    assert shapes == set()


def test_layers_that_would_read_something_else_stay_as_they_are() -> None:
    network = nn.Sequential(
        nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(2, 2, 3, padding="same"),
        nn.Conv2d(2, 2, 3, padding=1),
    )
    put_on_ladder(network)
    assert [type(layer) for layer in network] == [nn.Conv2d, nn.Conv2d, LadderConv2d]


def test_rows_that_fill_up_get_no_gradient_and_give_none() -> None:
    torch.manual_seed(0)
    layer = nn.ConvTranspose2d(2, 3, 2, stride=2).double()
    maps = torch.rand(41, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    plain = torch.autograd.grad(layer(maps).square().sum(), [maps, *layer.parameters()])
    with planned_by_size():
        filled = by_rows(layer, maps)
    found = torch.autograd.grad(filled.square().sum(), [maps, *layer.parameters()])
    for mine, theirs in zip(found, plain, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["c4-masks", "fpn"])
def test_a_detector_learns_the_same_on_the_ladder(kind: str) -> None:
    """Losses, gradients and the statistics of all batch norms, of images of odd sizes."""
    batch = tiny_batch()
    plain = learned(kind)
    with planned_by_size() as shapes:
        found = learned(kind)
    torch.testing.assert_close(found, plain, rtol=1e-9, atol=1e-9)
    rows = {len(batch.images)} | {rung(count, per_octave=4) for count in range(100)}
    assert {shape[0] for shape in shapes} <= rows


def learned(kind: str) -> dict[str, Tensor]:
    model = few_regions(kind)
    losses = model.losses(tiny_batch(), step=0)
    sum(losses.values()).backward()
    gradients = {name: x.grad for name, x in model.named_parameters()}
    return losses | gradients | dict(model.named_buffers())


def few_regions(kind: str) -> Detector:
    """In float64, where convolutions of many regions would take long."""
    model = tiny_detector(kind).double()
    model.config = replace(model.config, box=replace(model.config.box, regions_per_image=3))
    model.proposer.config = replace(model.proposer.config, test_after_nms=3)
    return model


@pytest.mark.parametrize("kind", ["c4-masks", "fpn"])
def test_a_detector_finds_the_same_on_the_ladder(kind: str) -> None:
    plain = found_by(kind)
    with planned_by_size():
        torch.testing.assert_close(found_by(kind), plain, rtol=1e-9, atol=1e-9)


def found_by(kind: str) -> list[tuple[Tensor, ...]]:
    model = few_regions(kind).eval()
    return [found[:4] for found in model.find(tiny_batch())]


def test_convolutions_see_gradients_with_the_channels_last_like_their_maps() -> None:
    """Otherwise each of them would turn its gradient round, which takes a GPU long."""
    maps = torch.rand(9, 2, 33, 35).to(memory_format=torch.channels_last)
    layer = nn.Conv2d(2, 3, 3, padding=1).to(memory_format=torch.channels_last)
    put_on_ladder(layer)
    seen: list[bool] = []
    plain = nn.Conv2d._conv_forward

    def watched(layer: nn.Conv2d, maps: Tensor, *others: object) -> Tensor:
        result = plain(layer, maps, *others)
        result.register_hook(
            lambda gradient: seen.append(gradient.is_contiguous(memory_format=torch.channels_last))
        )
        return result

    with planned_by_size(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.Conv2d, "_conv_forward", watched)
        result = layer(maps)
        result.backward(torch.rand_like(result))
    assert seen == [True]
