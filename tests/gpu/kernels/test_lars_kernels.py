"""LARS by kernels moves weights as the formulas do in float64, and as torch's operations do."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from builders.gpu_marks import DEVICE, NEEDS_KERNELS, ON_GPU, full_size
from references.lars import lars_path
from torch import Tensor, nn

from clove_ssl import optimizers
from clove_ssl.optimizers import LARS

pytestmark = NEEDS_KERNELS

# Up to a chunk, exactly one, and beyond; odd lengths; matrices, maps, vectors and a number.
SHAPES = [(1, 1), (3, 5), (64, 64), (71, 59), (130, 127), (7, 3, 3, 3), (6, 10, 1, 1)]
SHAPES += [(1,), (13,), (4099,), ()]
WIDE = [(2048, 512, 3, 3), (8192, 2048), (1000, 2049), (8191,), (64, 3, 7, 7)]
RATES = (0.5, 0.4, 0.1)


@pytest.fixture(autouse=True)
def _kernels_on_any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    if not ON_GPU:  # the interpreter takes tensors of the host
        monkeypatch.setattr(optimizers, "_has_kernels", lambda device: True)


@pytest.fixture
def kernels_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be left to torch's operations."""
    monkeypatch.delattr(optimizers, "_update_by_torch")


def numbers(shape: tuple[int, ...], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator).to(DEVICE)
    return values.to(memory_format=torch.channels_last) if len(shape) == 4 else values


def parameters_of(shapes: list[tuple[int, ...]]) -> list[nn.Parameter]:
    return [nn.Parameter(numbers(shape, seed)) for seed, shape in enumerate(shapes)]


def gradients_of(shapes: list[tuple[int, ...]], step: int) -> list[Tensor]:
    return [numbers(shape, 100 * (step + 1) + seed) for seed, shape in enumerate(shapes)]


def take_step(optimizer: LARS, gradients: Sequence[Tensor | None], lr: float = 0.5) -> None:
    """Of an optimizer with one group."""
    (group,) = optimizer.param_groups
    group["lr"] = lr
    for parameter, gradient in zip(group["params"], gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()


def trained(shapes: list[tuple[int, ...]], **settings: float) -> list[Tensor]:
    """Weights and buffers after some steps."""
    optimizer = LARS(parameters_of(shapes), 0.5, **settings)
    for step, rate in enumerate(RATES):
        take_step(optimizer, gradients_of(shapes, step), rate)
    buffers = [state["momentum_buffer"] for state in optimizer.state.values()]
    return [*(p.detach() for p in optimizer.param_groups[0]["params"]), *buffers]


def assert_close(found: Tensor, wanted: np.ndarray) -> None:
    """Up to rounding of the largest numbers."""
    off = np.abs(found.detach().double().cpu().numpy() - wanted).max(initial=0)
    assert off <= 1e-6 * np.abs(wanted).max(initial=0)


def equal(some: list[Tensor], others: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


@pytest.mark.usefixtures("kernels_alone")
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("trust", [0.001, 1.0])
def test_tiny_paths_are_those_of_the_reference(
    momentum: float, weight_decay: float, trust: float
) -> None:
    settings = {"momentum": momentum, "weight_decay": weight_decay, "trust": trust}
    found = trained(SHAPES, **settings)
    starts = parameters_of(SHAPES)
    gradients = zip(*(gradients_of(SHAPES, step) for step in range(len(RATES))), strict=True)
    for start, slopes, weight in zip(starts, gradients, found[: len(SHAPES)], strict=True):
        path = lars_path(
            start.detach().double().cpu().numpy(),
            [slope.double().cpu().numpy() for slope in slopes],
            lr=RATES,
            **settings,
        )
        assert_close(weight, path[-1])
    assert len(found) == len(SHAPES) * (2 if momentum else 1)


@pytest.mark.usefixtures("kernels_alone")
@pytest.mark.parametrize(("scale", "slope"), [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_tiny_weights_and_gradients_of_zero(
    scale: float, slope: float, weight_decay: float
) -> None:
    start, gradient = scale * numbers((5, 9), 0), slope * numbers((5, 9), 1)
    parameter = nn.Parameter(start.clone())
    take_step(LARS([parameter], 0.5, weight_decay=weight_decay, eps=0.0), [gradient])
    path = lars_path(
        start.double().cpu().numpy(), [gradient.double().cpu().numpy()], lr=[0.5], momentum=0.9,
        weight_decay=weight_decay, trust=0.001, eps=0.0,
    )  # fmt: skip
    assert_close(parameter, path[-1])


@pytest.mark.usefixtures("kernels_alone")
def test_tiny_steps_leave_all_else_as_it_is() -> None:
    """Gradients, the numbers beside a tensor, empty tensors, layouts, and autograd's knowledge."""
    whole = numbers((40,), 0)
    before = whole.clone()
    inside, empty = nn.Parameter(whole[4:37].view(3, 11)), nn.Parameter(numbers((0, 3), 0))
    maps = nn.Parameter(numbers((2, 3, 3, 3), 1))
    gradients = [numbers((3, 11), 2), numbers((0, 3), 0), numbers((2, 3, 3, 3), 3)]
    kept, version = [gradient.clone() for gradient in gradients], inside._version
    optimizer = LARS([inside, empty, maps], 0.5)
    take_step(optimizer, gradients)
    assert equal(gradients, kept)
    changed = (whole != before).cpu()
    assert changed[4:37].any()
    assert not changed[:4].any()
    assert not changed[37:].any()
    assert optimizer.state[maps]["momentum_buffer"].stride() == maps.stride()
    assert inside._version > version


@pytest.mark.usefixtures("kernels_alone")
def test_tiny_gradients_may_begin_anywhere() -> None:
    """Those of several processes are parts of one message; bits must not depend on its order."""
    shapes = [(71, 59), (3, 5), (13,)]
    paths = []
    for shift in (0, 1):
        optimizer = LARS(parameters_of(shapes), 0.5, weight_decay=0.01)
        for step in range(2):
            gradients = gradients_of(shapes, step)
            rooms = [gradient.new_empty(gradient.numel() + shift)[shift:] for gradient in gradients]
            moved = [room.view_as(g).copy_(g) for room, g in zip(rooms, gradients, strict=True)]
            take_step(optimizer, moved)
        paths.append(optimizer.param_groups[0]["params"])
    assert equal(*paths)


@pytest.mark.usefixtures("kernels_alone")
def test_tiny_lists_that_change_between_steps() -> None:
    """By a parameter without a gradient, and by a state that was loaded."""
    parameters = parameters_of([(3, 5), (4, 4), (64, 65)])
    optimizer = LARS(parameters, 0.5)
    slopes = gradients_of([(3, 5), (4, 4), (64, 65)], 0)
    for absent in (None, 1, 0, None):
        before = [parameter.detach().clone() for parameter in parameters]
        take_step(optimizer, [None if i == absent else s for i, s in enumerate(slopes)])
        same = [torch.equal(b, p) for b, p in zip(before, parameters, strict=True)]
        assert same == [i == absent for i in range(3)]
    twins = [nn.Parameter(parameter.detach().clone()) for parameter in parameters]
    restored = LARS(twins, 5.0)
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    take_step(optimizer, slopes)
    take_step(restored, slopes)
    assert equal(parameters, twins)


def odd_tensors() -> dict[str, tuple[Tensor, Tensor]]:
    """Weights and gradients that the kernels cannot take, with why."""
    return {
        "format": (numbers((3, 5), 0).double(), numbers((3, 5), 1).double()),
        "gaps": (numbers((3, 8), 0)[:, :5], numbers((3, 8), 1)[:, :5]),
        "order": (numbers((2, 3, 3, 3), 0), numbers((2, 3, 3, 3), 1).contiguous()),
        "turned": (numbers((5, 3), 0), numbers((3, 5), 1).mT),
        "shifted": (numbers((16,), 0)[1:].view(3, 5), numbers((3, 5), 1)),
    }


@pytest.mark.parametrize("kind", odd_tensors())
def test_tiny_lists_with_other_tensors_are_left_to_torch(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clove_ssl.lars_kernels import TensorList, fits

    start, gradient = odd_tensors()[kind]
    assert fits([numbers((3, 5), 0)], [numbers((3, 5), 1)], [])
    assert not fits([start], [gradient], [])
    monkeypatch.delattr(TensorList, "update")
    parameter = nn.Parameter(start.clone() if kind == "order" else start)
    wanted = lars_path(
        start.double().cpu().numpy().copy(), [gradient.double().cpu().numpy()], lr=[0.5],
        momentum=0.9, weight_decay=0.1, trust=0.001,
    )  # fmt: skip
    take_step(LARS([parameter], 0.5, weight_decay=0.1), [gradient])
    assert_close(parameter, wanted[-1])


@full_size
@pytest.mark.parametrize("weight_decay", [0.0, 1e-5])
def test_steps_of_runs_are_those_of_torch_and_repeat_themselves(
    weight_decay: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, again = (trained(WIDE, weight_decay=weight_decay) for _ in range(2))
    assert equal(first, again)
    with monkeypatch.context() as patched:
        patched.setattr(optimizers, "_has_kernels", lambda device: False)
        by_torch = trained(WIDE, weight_decay=weight_decay)
    for found, wanted in zip(first, by_torch, strict=True):
        assert_close(found, wanted.double().cpu().numpy())


@full_size
def test_gradients_that_stay_give_the_bits_of_gradients_that_move() -> None:
    """As in captured steps, whose gradients lie where they were recorded, and in the others."""
    moving, staying = (LARS(parameters_of(WIDE), 0.5, weight_decay=1e-5) for _ in range(2))
    places = [torch.empty_like(gradient) for gradient in gradients_of(WIDE, 0)]
    for step in range(4):
        gradients = gradients_of(WIDE, step)
        for place, gradient in zip(places, gradients, strict=True):
            place.copy_(gradient)
        take_step(moving, gradients)
        take_step(staying, places)
    assert equal(moving.param_groups[0]["params"], staying.param_groups[0]["params"])


@full_size
def test_a_step_may_be_recorded() -> None:
    """By torch's operations, as a graph keeps neither new addresses nor a new learning rate."""
    recorded, plain = (LARS(parameters_of(SHAPES), 0.5) for _ in range(2))
    gradients = gradients_of(SHAPES, 0)
    for optimizer in (recorded, plain):
        take_step(optimizer, gradients)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded.step()
    graph.replay()
    take_step(plain, gradients)
    torch.cuda.synchronize()
    for one, other in zip(*(o.param_groups[0]["params"] for o in (recorded, plain)), strict=True):
        assert_close(one, other.detach().double().cpu().numpy())
