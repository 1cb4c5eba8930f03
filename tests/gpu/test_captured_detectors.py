"""Detectors whose first stage and box head are captured train like those that are not.

The first stage has the same bits. So has the box head, but for gradients of pooling, which a kernel
adds up in any order; where bits must repeat themselves, it is not captured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from builders.gpu_marks import NEEDS_GPU
from builders.runs.tiny_finetuning import tiny_finetuning
from builders.tasks.tiny_detectors import tiny_batch, tiny_detector
from torch import Tensor, nn

from clove_ssl.backbones.build import fuse_norms
from clove_ssl.finetuning import seeds as finetuning
from clove_ssl.layers import captured
from clove_ssl.layers.captured import SEEN_BEFORE, CapturedFunction, Recorder, borrowed
from clove_ssl.layers.fused_norm.activation import normalize_relu
from clove_ssl.layers.transfers import constant
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.provenance import read_starts
from clove_ssl.tasks.precise_norm import estimate_statistics
from clove_ssl.tasks.rcnn.detector import Detector
from clove_ssl.tasks.rcnn.instances import DetectionBatch
from clove_ssl.training.numerics import Precision, start_repeatably

pytestmark = NEEDS_GPU
GPU = torch.device("cuda")
STEPS = 14
CANVASES = ((64, 96), (96, 64), (80, 128))
IN_TURN = (0, 1, 2, 0, 1, 2)
LATE = (0, 0, 0, 0, 1, 0, 1, 0, 2, 0, 2, 0, 1, 0)  # two of them after the other was recorded
KINDS = ["fpn", "c4", "c4-masks", "keypoints"]


@pytest.fixture(autouse=True)
def kernels_that_repeat() -> Iterator[None]:
    """Also of RoIAlign, which is then made of plain operations that torchvision would compile."""
    start_repeatably(0, GPU, deterministic=True, sizes_vary=True)
    with torch.compiler.set_stance("force_eager"):
        yield
    start_repeatably(0, GPU, deterministic=False)


def batches(order: Sequence[int] = IN_TURN) -> list[DetectionBatch]:
    """Batches of these canvases, each of other images."""
    made = []
    for number, canvas in enumerate(order):
        batch = tiny_batch()
        source = torch.Generator().manual_seed(number)
        height, width = CANVASES[canvas]
        images = tuple(
            torch.randint(256, (3, *size), generator=source, dtype=torch.uint8)
            for size in ((height, width), (height - 5, width - 9))
        )
        targets = tuple(each.prepared() for each in batch.targets)
        made.append(replace(batch, images=images, targets=targets).to("cuda"))
    return made


@dataclass
class Trained:
    state: dict[str, Tensor]
    losses: list[Tensor]
    kinds: int  # that were replayed


class Training:
    """Steps of a detector, some of which may be replayed."""

    def __init__(
        self, kind: str, precision: str, *, micro_batches: int = 1, **changes: object
    ) -> None:
        self.model = build(kind, **changes)
        self.precision = Precision(precision, "", "cuda")
        self.precision.prepare()
        self.recorder = Recorder(GPU)
        self.micro_batches = micro_batches
        self.model.capture(self.recorder, accumulates=micro_batches > 1, warn=pytest.fail)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01, momentum=0.9, fused=True)
        self.losses: list[Tensor] = []

    @property
    def function(self) -> CapturedFunction:
        assert self.model.captured is not None
        return self.model.captured

    def run(self, start: int, stop: int, order: Sequence[int] = IN_TURN) -> Trained:
        several = batches(order)
        with self.recorder.own_stream():
            for step in range(start, stop):
                for number in range(self.micro_batches):
                    self.losses.append(self.forward_backward(several, step, number))
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        state = {name: value.clone() for name, value in self.model.state_dict().items()}
        return Trained(state, self.losses, self.function.kinds)

    def forward_backward(self, several: list[DetectionBatch], step: int, number: int) -> Tensor:
        with self.precision.autocast():
            losses = self.model.losses(several[(step + number) % len(several)], step=step)
            total = torch.stack(list(losses.values()))
        (total.sum() / self.micro_batches).backward()
        return total.detach().clone()


def build(kind: str, **changes: object) -> Detector:
    model = tiny_detector(kind, **changes).to("cuda", memory_format=torch.channels_last).train()
    fuse_norms(model)
    return model


def segments_of(recorder: Recorder) -> list[dict[str, Any]]:
    """The memory of its graphs, as torch describes it."""
    everywhere = torch.cuda.memory_snapshot()
    return [each for each in everywhere if each["segment_pool_id"] == recorder._memory]


def never_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured, "MOST_KINDS", 0)


def assert_same(plain: Trained, mine: Trained) -> None:
    assert torch.equal(torch.stack(plain.losses), torch.stack(mine.losses))
    assert [
        name for name in plain.state if not torch.equal(plain.state[name], mine.state[name])
    ] == []


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("kind", KINDS)
def test_replays_have_the_same_bits(
    kind: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = Training(kind, precision).run(0, STEPS)
    never_recorded(monkeypatch)
    plain = Training(kind, precision).run(0, STEPS)
    assert (mine.kinds, plain.kinds) == (len(CANVASES), 0)
    assert_same(plain, mine)


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_that_come_late_have_the_same_bits(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passes that are not recorded, between replays of others that write where graphs may."""
    mine = Training(kind, "bf16").run(0, len(LATE), LATE)
    never_recorded(monkeypatch)
    plain = Training(kind, "bf16").run(0, len(LATE), LATE)
    assert (mine.kinds, plain.kinds) == (1, 0)
    assert_same(plain, mine)


@pytest.mark.parametrize("kind", KINDS)
def test_passes_leave_nothing_in_the_memory_of_graphs(kind: str) -> None:
    """What lasts would be written over by the next replay."""
    training = Training(kind, "bf16")
    kept = []
    for start, stop in ((0, 6), (6, len(LATE))):  # libraries take what they need in the first
        training.run(start, stop, LATE)
        kept.append(sum(each["allocated_size"] for each in segments_of(training.recorder)))
    assert kept[0] == kept[1]


def test_gradients_of_micro_batches_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Training("fpn", "bf16", micro_batches=3).run(0, STEPS)
    never_recorded(monkeypatch)
    plain = Training("fpn", "bf16", micro_batches=3).run(0, STEPS)
    assert (mine.kinds, plain.kinds) == (len(CANVASES), 0)
    assert_same(plain, mine)


def test_a_resumed_training_has_the_same_bits() -> None:
    whole = Training("fpn", "bf16").run(0, STEPS)
    first = Training("fpn", "bf16")
    first.run(0, STEPS - 2)
    second = Training("fpn", "bf16")
    second.model.load_state_dict(first.model.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.losses = first.losses
    resumed = second.run(STEPS - 2, STEPS)
    assert (whole.kinds, resumed.kinds) == (len(CANVASES), 0)
    assert_same(whole, resumed)


@pytest.mark.parametrize("kind", KINDS)
def test_replayed_box_heads_have_the_same_losses(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights stay as they are: two trainings soon choose other regions for a bit of rounding."""
    start_repeatably(0, GPU, deterministic=False, sizes_vary=True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    several, found = batches(), []
    for is_recorded in (True, False):
        if not is_recorded:
            never_recorded(monkeypatch)
        training = Training(kind, "fp32", micro_batches=STEPS)  # so that gradients add up
        with training.recorder.own_stream():
            losses = torch.stack([training.forward_backward(several, n, 0) for n in range(STEPS)])
        boxes = training.model.captured_boxes
        assert boxes is not None
        assert boxes.kinds == (len(CANVASES) if is_recorded else 0)
        gradients = {name: each.grad for name, each in training.model.named_parameters()}
        found.append((losses, gradients))
    (mine, my_gradients), (plain, their_gradients) = found
    torch.testing.assert_close(mine, plain, rtol=1e-6, atol=1e-6)
    for name, gradient in their_gradients.items():
        least = 1e-4 * float(gradient.abs().max()) + 1e-7  # a bias before a softmax learns nothing
        torch.testing.assert_close(my_gradients[name], gradient, rtol=1e-3, atol=least)


def test_gradients_of_inputs_have_the_same_bits() -> None:
    first, second = (nn.Conv2d(8, 8, 3, padding=1, device=GPU) for _ in range(2))
    recorder = Recorder(GPU)
    parts = [
        CapturedFunction(
            lambda maps, layer=layer: (layer(maps).relu(),),
            list(layer.parameters()),
            own,
            accumulates=False,
            warn=pytest.fail,
        )
        for layer, own in ((first, recorder), (second, recorder.beside()))
    ]
    source = torch.Generator("cuda").manual_seed(0)
    with recorder.own_stream():
        for _ in range(SEEN_BEFORE + 3):
            maps = torch.randn(2, 8, 16, 16, device=GPU, generator=source)
            found = []
            for one, other in ((parts[0], parts[1]), (first, second)):
                inner = one(maps)[0] if isinstance(one, CapturedFunction) else one(maps).relu()
                outer = (
                    other(inner)[0] if isinstance(one, CapturedFunction) else other(inner).relu()
                )
                (outer.square().sum() + inner.sum()).backward()
                both = [*first.parameters(), *second.parameters()]
                found.append([outer.detach().clone(), *(each.grad.clone() for each in both)])
                for each in both:
                    each.grad = None
            assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert [part.kinds for part in parts] == [1, 1]


def test_a_frozen_detector_is_captured_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = {"frozen_stages": 2, "backbone_norm": "frozen"}
    mine = Training("fpn", "bf16", **frozen).run(0, STEPS)
    never_recorded(monkeypatch)
    plain = Training("fpn", "bf16", **frozen).run(0, STEPS)
    assert (mine.kinds, plain.kinds) == (len(CANVASES), 0)
    assert_same(plain, mine)


def test_more_sizes_than_there_is_room_for_run_kernel_by_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(captured, "MOST_KINDS", 1)
    mine = Training("fpn", "bf16").run(0, STEPS)
    never_recorded(monkeypatch)
    plain = Training("fpn", "bf16").run(0, STEPS)
    assert (mine.kinds, plain.kinds) == (1, 0)
    assert_same(plain, mine)


def test_a_part_that_cannot_be_recorded_is_left_alone() -> None:
    told: list[str] = []
    weight = nn.Parameter(torch.ones(2, device=GPU))
    recorder = Recorder(GPU)

    def multiply(numbers: Tensor) -> tuple[Tensor, ...]:
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("no room for this")
        return (numbers * weight,)

    function = CapturedFunction(multiply, [weight], recorder, accumulates=False, warn=told.append)
    with recorder.own_stream():
        for number in range(SEEN_BEFORE + 3):
            (out,) = function(torch.full((2,), float(number), device=GPU))
            assert out.tolist() == [float(number)] * 2
            out.sum().backward()
    assert len(told) == 1
    assert "no room for this" in told[0]
    assert function.kinds == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64, torch.bool])
def test_borrowed_tensors_lie_where_the_others_do(dtype: torch.dtype) -> None:
    numbers = torch.arange(2 * 3 * 4 * 5, device=GPU).view(2, 3, 4, 5).to(dtype)
    last = numbers.contiguous(memory_format=torch.channels_last)
    for each in (numbers, last, numbers[:, 1:, ::2], numbers[0, 0, 0, 1], numbers[:0]):
        mine = borrowed(each)
        assert (mine.dtype, mine.stride()) == (dtype, each.stride())
        assert torch.equal(mine, each)
        assert each.numel() == 0 or mine.data_ptr() == each.data_ptr()


def test_kinds_of_passes_share_their_memory() -> None:
    weight = nn.Parameter(torch.full((1,), 2.0, device=GPU))
    recorder = Recorder(GPU)
    function = CapturedFunction(
        lambda numbers: ((numbers * weight).relu(),),
        [weight],
        recorder,
        accumulates=False,
        warn=pytest.fail,
    )
    lengths = [(8 + kind) << 20 for kind in range(4)]  # of at least 32 MB
    with recorder.own_stream():
        taken = []
        for number in range(4 * (SEEN_BEFORE + 2)):
            weight.grad = None
            length = lengths[number % 4]
            (out,) = function(torch.full((length,), float(number), device=GPU))
            assert out[-1].item() == 2 * number
            out.sum().backward()
            assert weight.grad.item() == pytest.approx(number * length, rel=1e-4)
            del out
            taken.append(torch.cuda.memory_allocated())
    assert function.kinds == 4
    assert taken[-1] - taken[0] < 1 << 20


def test_passes_that_are_not_recorded_use_the_memory_of_graphs() -> None:
    weight = nn.Parameter(torch.full((1,), 2.0, device=GPU))
    recorder = Recorder(GPU)

    def many_maps(numbers: Tensor) -> tuple[Tensor, ...]:
        for _ in range(16):
            numbers = torch.sin(numbers * weight)
        return (numbers.sum(),)

    function = CapturedFunction(many_maps, [weight], recorder, accumulates=False, warn=pytest.fail)
    taken = []
    with recorder.own_stream():
        for number in range(2 * (SEEN_BEFORE + 2)):
            weight.grad = None
            length = 4 << 20 if number < SEEN_BEFORE + 2 else 3 << 20
            function(torch.ones(length, device=GPU))[0].backward()
            taken.append(torch.cuda.memory_reserved())
    assert function.kinds == 2
    # Of 32 maps of 16 MB.
    assert taken[-1] - taken[SEEN_BEFORE + 1] < 128 << 20


def test_constants_lie_outside_the_memory_of_graphs() -> None:
    recorder, graph = Recorder(GPU), torch.cuda.CUDAGraph()
    with recorder.own_stream():
        with recorder.recorded(graph):
            torch.zeros(3, device=GPU)
        with recorder.memory():
            map_of_a_pass = torch.zeros(3, device=GPU)
            numbers = constant((1.5, 2.5, 7.25), GPU, dtype=torch.float32)
    segments = segments_of(recorder)

    def lies_inside(tensor: Tensor) -> bool:
        places = [tensor.data_ptr() - each["address"] for each in segments]
        sizes = [each["total_size"] for each in segments]
        return any(0 <= place < size for place, size in zip(places, sizes, strict=True))

    assert lies_inside(map_of_a_pass)
    assert not lies_inside(numbers)
    assert numbers.tolist() == [1.5, 2.5, 7.25]


def test_maps_follow_those_without_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms of small images have other kernels, which agree up to rounding."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    mine, other = Training("fpn", "fp32").model, build("fpn")
    batch = batches()[0]
    for one, another in zip(mine.maps(batch), other.maps(batch), strict=True):
        torch.testing.assert_close(one, another, rtol=1e-3, atol=1e-3)


def test_statistics_are_measured_in_layers_with_kernels_of_ours() -> None:
    norm = nn.BatchNorm2d(8).to(GPU).train()
    maps = (3 + torch.randn(4, 8, 6, 6, device=GPU)).to(memory_format=torch.channels_last)

    class Alone:
        def sum(self, values: Tensor) -> Tensor:
            return values

    estimate_statistics(
        nn.Sequential(norm), (normalize_relu(norm, maps) for _ in range(2)), Alone()
    )
    torch.testing.assert_close(norm.running_mean, maps.mean(dim=(0, 2, 3)), rtol=1e-4, atol=1e-4)


def test_a_run_captures_and_says_so(tmp_path: Path) -> None:
    config = tiny_finetuning("coco-fpn", tmp_path / "run", device="cuda", iterations=12)
    run = RunDirectory(finetuning.finetune(config).run)
    assert read_starts(run)[-1]["choices"]["capture"]["value"] is True
    assert "captured steps" in run.log.read_text()
    assert "could not be captured" not in run.log.read_text()
