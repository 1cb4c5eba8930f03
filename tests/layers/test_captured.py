"""Which passes are recorded, and what a replay hands on; real graphs need a GPU (tests/gpu)."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch
from builders.graphs_by_hand import record_by_hand
from torch import Tensor, nn

from clove_ssl.layers import captured
from clove_ssl.layers.captured import (
    MOST_KINDS,
    SEEN_BEFORE,
    CapturedFunction,
    Sightings,
    kind_of,
    no_garbage_collected,
)


def due(sightings: Sightings, kind: str) -> bool:
    return [sightings.is_due(kind) for _ in range(SEEN_BEFORE + 1)][-1]


def test_a_kind_is_recorded_once_it_has_come_some_times() -> None:
    sightings = Sightings()
    asked = [sightings.is_due("a") for _ in range(SEEN_BEFORE + 1)]
    assert asked == [False] * SEEN_BEFORE + [True]
    assert not sightings.is_due("b")


def test_there_are_only_so_many_kinds() -> None:
    sightings = Sightings()
    for number in range(MOST_KINDS):
        assert due(sightings, f"kind {number}")
        sightings.count_recorded()
    assert not due(sightings, "one more")


def test_after_a_failure_nothing_is_tried_again() -> None:
    sightings = Sightings()
    sightings.give_up()
    assert not due(sightings, "a")


def test_garbage_waits_until_a_recording_has_ended() -> None:
    before, freed = gc.get_threshold(), list[bool]()
    gc.set_threshold(1)
    try:
        with no_garbage_collected():
            _drop_a_cycle(freed)
            made = [[number] for number in range(1000)]  # which would have it collected
            assert not freed
            assert len(made) == 1000
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert freed


def _drop_a_cycle(freed: list[bool]) -> None:
    class Cycle:
        def __init__(self) -> None:
            self.own = self

        def __del__(self) -> None:
            freed.append(True)

    Cycle()


@pytest.mark.parametrize("is_on", [True, False])
def test_a_recording_that_fails_leaves_the_collector_as_it_was(is_on: bool) -> None:
    (gc.enable if is_on else gc.disable)()
    try:
        with pytest.raises(ZeroDivisionError), no_garbage_collected():
            1 / 0  # noqa: B018
        assert gc.isenabled() is is_on
    finally:
        gc.enable()


def test_kinds_differ_in_shape_layout_and_number_format() -> None:
    maps = torch.zeros(2, 3, 4, 5)
    turned = maps.contiguous(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        in_bf16 = kind_of([maps])
    kinds = {kind_of([maps]), kind_of([maps[:1]]), kind_of([turned]), in_bf16}
    assert len(kinds) == 4
    assert kind_of([maps]) == kind_of([maps + 1])


def test_gradients_arrive_in_the_layout_of_their_tensors() -> None:
    weight, seen = nn.Parameter(torch.ones(1, 3, 1, 1)), list[Tensor]()

    def scaled(pixels: Tensor) -> tuple[Tensor, ...]:
        maps = pixels * weight
        maps.register_hook(seen.append)
        return maps, pixels.amax()

    function = CapturedFunction(
        scaled, [weight], SimpleNamespace(), accumulates=False, warn=pytest.fail
    )
    pixels = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    maps, largest = function(pixels)
    assert not largest.requires_grad
    torch.autograd.backward(maps, torch.arange(120.0).view(2, 3, 4, 5))
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(seen[0], torch.arange(120.0).view(2, 3, 4, 5))


@pytest.mark.parametrize("accumulates", [True, False])
def test_a_pass_by_kernels_keeps_nothing_of_its_maps(accumulates: bool) -> None:
    weight, kept = nn.Parameter(torch.ones(3)), []

    def squared(numbers: Tensor) -> tuple[Tensor, ...]:
        maps = (numbers * weight) ** 2
        kept.append(weakref.ref(maps))
        return (maps,)

    function = CapturedFunction(
        squared, [weight], SimpleNamespace(), accumulates=accumulates, warn=pytest.fail
    )
    loss = function(torch.ones(3))[0].sum()
    assert kept[0]() is not None
    loss.backward()
    assert kept[0]() is None
    assert weight.grad.tolist() == [2.0, 2.0, 2.0]


def train(monkeypatch: pytest.MonkeyPatch, *, replays: bool, micro_batches: int) -> nn.Module:
    """Some steps on two kinds of inputs."""
    monkeypatch.setattr(CapturedFunction, "_record", record_by_hand)
    monkeypatch.setattr(captured, "MOST_KINDS", MOST_KINDS if replays else 0)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    for parameter in network[0].parameters():
        parameter.requires_grad_(parameter.ndim > 1)  # a bias is frozen
    function = CapturedFunction(
        lambda pixels: ((maps := network(pixels)), maps.detach().amax()),
        list(network.parameters()),
        SimpleNamespace(memory=nullcontext),
        accumulates=micro_batches > 1,
        warn=pytest.fail,
    )
    optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    for step in range(12):
        for number in range(micro_batches):
            side = 5 + (step + number) % 2
            maps, largest = function(torch.randn(2, 3, side, side, generator=generator))
            assert not largest.requires_grad
            ((maps**2).mean() / micro_batches).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    assert function.kinds == (2 if replays else 0)
    return network


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_replays_train_like_plain_passes(
    monkeypatch: pytest.MonkeyPatch, micro_batches: int
) -> None:
    plain, mine = (
        train(monkeypatch, replays=replays, micro_batches=micro_batches).state_dict()
        for replays in (False, True)
    )
    moved = plain.pop("1.num_batches_tracked"), mine.pop("1.num_batches_tracked")
    assert moved[1] >= moved[0]  # recording by hand, other than on a GPU, makes passes of its own
    for name in ("0.weight", "0.bias", "1.weight", "1.bias"):
        assert torch.equal(plain[name], mine[name]), name


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_part_inside_another_hands_gradients_on(
    monkeypatch: pytest.MonkeyPatch, micro_batches: int
) -> None:
    plain, mine = (
        train_in_parts(monkeypatch, replays=replays, micro_batches=micro_batches)
        for replays in (False, True)
    )
    assert [name for name in plain if not torch.equal(plain[name], mine[name])] == []


def train_in_parts(
    monkeypatch: pytest.MonkeyPatch, *, replays: bool, micro_batches: int
) -> dict[str, Tensor]:
    """Steps whose second part runs between both passes of the first, whose maps others use too."""
    monkeypatch.setattr(CapturedFunction, "_record", record_by_hand)
    monkeypatch.setattr(captured, "MOST_KINDS", MOST_KINDS if replays else 0)
    torch.manual_seed(0)
    first, second = nn.Conv2d(3, 4, 3, bias=False), nn.Conv2d(4, 2, 1, bias=False)
    network = nn.Sequential(first, second)
    parts = [
        CapturedFunction(
            function,
            list(network[number].parameters()),
            SimpleNamespace(memory=nullcontext),
            accumulates=micro_batches > 1,
            warn=pytest.fail,
        )
        for number, function in enumerate(
            [lambda pixels: (first(pixels),), lambda maps, factor: ((factor * second(maps)).sum(),)]
        )
    ]
    optimizer = torch.optim.SGD(network.parameters(), 0.01, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    for step in range(8):
        for _ in range(micro_batches):
            (maps,) = parts[0](torch.randn(2, 3, 5, 5, generator=generator))
            (total,) = parts[1](maps, torch.tensor(float(step)))
            ((total + (maps**2).mean()) / micro_batches).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    assert [part.kinds for part in parts] == ([1, 1] if replays else [0, 0])
    return network.state_dict()


def test_a_recording_knows_which_parameters_its_kind_learns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(captured.torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(captured.torch, "empty_like", torch.ones_like)  # instead of contents
    weight, other = (nn.Parameter(torch.full((2,), value)) for value in (2.0, 3.0))
    function = CapturedFunction(
        lambda numbers: ((numbers * (weight if len(numbers) < 3 else weight * other)).sum(),),
        [weight, other],
        SimpleNamespace(recorded=lambda graph: nullcontext()),
        accumulates=False,
        warn=pytest.fail,
    )
    first, second = (function._record([torch.ones(length, 2)]) for length in (1, 3))
    assert [each.tolist() for each in first.inner] == [[1.0, 1.0]]
    assert [each.tolist() for each in second.inner] == [[9.0, 9.0], [6.0, 6.0]]
    assert (first.learners, second.learners) == ([weight], [weight, other])
    assert second.learned == [True]


def test_a_recording_has_gradients_of_inputs_that_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured.torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(captured.torch, "empty_like", torch.ones_like)  # instead of contents
    weight = nn.Parameter(torch.tensor(3.0))
    function = CapturedFunction(
        lambda numbers, maps, unused: ((numbers * maps * weight).sum(),),
        [weight],
        SimpleNamespace(recorded=lambda graph: nullcontext()),
        accumulates=False,
        warn=pytest.fail,
    )
    maps, unused = torch.ones(2, requires_grad=True), torch.ones(1, requires_grad=True)
    recording = function._record([torch.ones(2), maps, unused])
    assert recording.learners == [1, weight]
    assert [each.tolist() for each in recording.inner] == [[3.0, 3.0], 2.0]
    assert not any(each.requires_grad for each in recording.inputs)


def test_inputs_that_lie_still_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured.torch.cuda, "CUDAGraph", object)
    function = CapturedFunction(
        lambda maps, numbers: (maps * numbers,),
        [],
        SimpleNamespace(recorded=lambda graph: nullcontext()),
        accumulates=False,
        warn=pytest.fail,
        read_in_place=1,
    )
    inputs = [torch.ones(2, requires_grad=True), torch.full((2,), 3.0)]
    recording = function._record(inputs)
    assert recording.learners == [0]
    is_there = [a.data_ptr() == b.data_ptr() for a, b in zip(inputs, recording.inputs, strict=True)]
    assert is_there == [True, False]
    captured._put(inputs, recording.inputs)
    assert [each.tolist() for each in recording.inputs] == [[1.0, 1.0], [3.0, 3.0]]
    captured._put(inputs, inputs)  # nothing to do, which is no error


def test_inputs_that_moved_are_of_another_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CapturedFunction, "_record", record_by_hand)
    function = CapturedFunction(
        lambda maps, numbers: (maps * numbers,),
        [],
        SimpleNamespace(memory=nullcontext),
        accumulates=False,
        warn=pytest.fail,
        read_in_place=1,
    )
    here, there = (torch.full((2,), value, requires_grad=True) for value in (1.0, 2.0))
    kinds = []
    for maps in [here] * (SEEN_BEFORE + 2) + [there, here]:
        (found,) = function(maps, torch.full((2,), 3.0))
        assert found.tolist() == [3.0 * maps[0].item()] * 2
        kinds.append(function.kinds)
    assert kinds == [0] * SEEN_BEFORE + [1, 1, 2, 2]


def test_what_cannot_be_recorded_runs_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def refused(graph: object) -> Iterator[None]:
        raise RuntimeError("operation not permitted\nwhen stream is capturing")
        yield

    monkeypatch.setattr(captured.torch.cuda, "CUDAGraph", object)
    weight, told = nn.Parameter(torch.tensor(2.0)), []
    function = CapturedFunction(
        lambda numbers: (numbers * weight,),
        [weight],
        SimpleNamespace(recorded=refused, memory=nullcontext),
        accumulates=False,
        warn=told.append,
    )
    for _ in range(SEEN_BEFORE + 3):
        (doubled,) = function(torch.ones(2))
        assert doubled.tolist() == [2.0, 2.0]
        weight.grad = None
        doubled.sum().backward()
        assert weight.grad == 2
    assert len(told) == 1
    assert "operation not permitted" in told[0]
    assert "when stream" not in told[0]
