"""LARS as a torch optimizer, and the optimizers of a config."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from references.lars import lars_path
from torch import nn

from clove_ssl.config.pretraining import OptimizerConfig
from clove_ssl.errors import UserError
from clove_ssl.optimizers import LARS, build_optimizer


def small_network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1)).double()


def loss_of(network: nn.Module) -> torch.Tensor:
    images = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(1)).double()
    return network(images).square().mean() * 10


def train(network: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(network).backward()
        optimizer.step()


@given(
    st.integers(0, 10_000),
    st.sampled_from([(5,), (3, 4), (2, 3, 2, 2), ()]),
    st.sampled_from([0.0, 0.9]),
    st.sampled_from([0.0, 1e-2]),
)
def test_a_path_is_that_of_the_reference(
    seed: int, shape: tuple[int, ...], momentum: float, weight_decay: float
) -> None:
    rng = np.random.default_rng(seed)
    start, gradients = rng.normal(size=shape), rng.normal(size=(4, *shape))
    gradients[1] = 0
    parameter = nn.Parameter(torch.tensor(start))
    settings = {"momentum": momentum, "weight_decay": weight_decay, "trust": 0.01}
    optimizer = LARS([parameter], lr=0.5, **settings)
    path = []
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
        path.append(parameter.detach().numpy().copy())
    expected = lars_path(start, gradients, lr=[0.5] * 4, **settings)
    np.testing.assert_allclose(path, expected, rtol=0, atol=1e-12)


def test_gradients_are_left_as_they_are() -> None:
    network = small_network()
    loss_of(network).backward()
    before = [p.grad.clone() for p in network.parameters()]
    LARS(network.parameters(), lr=1.0, weight_decay=0.1).step()
    assert all(torch.equal(p.grad, g) for p, g in zip(network.parameters(), before, strict=True))


def test_parameters_stay_in_place() -> None:
    network = small_network()
    addresses = [p.data_ptr() for p in network.parameters()]
    train(network, LARS(network.parameters(), lr=1.0), 2)
    assert [p.data_ptr() for p in network.parameters()] == addresses


def test_a_restored_optimizer_continues_exactly() -> None:
    network = small_network()
    optimizer = LARS(network.parameters(), lr=1.0, weight_decay=0.1)
    train(network, optimizer, 3)
    twin = copy.deepcopy(network)
    restored = LARS(twin.parameters(), lr=5.0)
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(network, optimizer, 3)
    train(twin, restored, 3)
    assert all(
        torch.equal(a, b) for a, b in zip(network.parameters(), twin.parameters(), strict=True)
    )


def test_parameters_without_a_gradient_are_left_alone() -> None:
    used, unused = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    used.grad = torch.ones(2, 2)
    optimizer = LARS([used, unused], lr=1.0, weight_decay=0.1)
    optimizer.step()
    assert torch.equal(unused.detach(), torch.ones(2, 2))
    assert unused not in optimizer.state
    assert (used < 1).all()


def test_a_step_without_any_gradient_does_nothing() -> None:
    LARS([nn.Parameter(torch.ones(2, 2))], lr=1.0).step()


def test_the_closure_is_evaluated_with_gradients_and_its_loss_returned() -> None:
    network = small_network()
    optimizer = LARS(network.parameters(), lr=0.0)

    def closure() -> float:
        optimizer.zero_grad()
        loss = loss_of(network)
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == loss_of(network).item()


def test_groups_keep_their_own_settings() -> None:
    first, second = (nn.Parameter(torch.full((2, 2), 2.0)) for _ in range(2))
    optimizer = LARS([first], lr=1.0, momentum=0.0)
    optimizer.add_param_group({"params": [second], "lr": 0.5, "trust": 0.1})
    for parameter in (first, second):
        parameter.grad = torch.ones(2, 2)
    optimizer.step()  # weight norm 4, gradient norm 2: ratio 2 * trust
    torch.testing.assert_close(first.detach(), torch.full((2, 2), 2 - 0.002))
    torch.testing.assert_close(second.detach(), torch.full((2, 2), 2 - 0.1))


def test_formats_can_be_mixed_in_a_group() -> None:
    parameters = [nn.Parameter(torch.ones(2, 2, dtype=d)) for d in (torch.float32, torch.float64)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    LARS(parameters, lr=1.0).step()
    assert parameters[0].detach().double().allclose(parameters[1].detach())


def test_nothing_is_read_back_from_the_device() -> None:
    # Meta tensors have no values: reading one on the host would raise.
    parameters = [nn.Parameter(torch.ones(shape, device="meta")) for shape in [(3, 3), (3,)]]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer = LARS(parameters, lr=1.0, weight_decay=0.1)
    optimizer.step()
    optimizer.step()


def test_sparse_gradients_are_refused() -> None:
    parameter = nn.Parameter(torch.ones(3, 2))
    parameter.grad = torch.ones(3, 2).to_sparse()
    with pytest.raises(RuntimeError, match="sparse"):
        LARS([parameter], lr=1.0).step()


@pytest.mark.parametrize("name", ["lr", "momentum", "weight_decay", "trust"])
def test_negative_settings_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        LARS([nn.Parameter(torch.ones(1))], **{"lr": 1.0, name: -0.1})


@pytest.mark.parametrize(
    ("name", "kind"), [("lars", LARS), ("sgd", torch.optim.SGD), ("adamw", torch.optim.AdamW)]
)
def test_a_config_builds_its_optimizer_with_decay_on_matrices_only(
    name: str, kind: type[torch.optim.Optimizer]
) -> None:
    network = small_network()
    network[2].weight.requires_grad_(False)
    optimizer = build_optimizer(OptimizerConfig(name=name, weight_decay=0.3), network, 2.0)
    assert type(optimizer) is kind
    matrices, vectors = optimizer.param_groups
    assert [id(p) for p in matrices["params"]] == [id(network[0].weight)]
    assert {id(p) for p in vectors["params"]} == {
        id(p) for p in network.parameters() if p.ndim == 1
    }
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.3, 0.0)
    assert matrices["lr"] == vectors["lr"] == 2.0


def test_biases_and_norms_decay_where_asked_for() -> None:
    network = small_network()
    config = OptimizerConfig(name="sgd", weight_decay=0.3, decay="all")
    (everything,) = build_optimizer(config, network, 2.0).param_groups
    assert everything["weight_decay"] == 0.3
    assert len(everything["params"]) == len(list(network.parameters()))
    with pytest.raises(UserError, match="--optimizer.decay weights"):
        OptimizerConfig(decay="all")


def test_the_configured_lars_moves_like_one_without_groups() -> None:
    network, twin = small_network(), small_network()
    config = OptimizerConfig(weight_decay=0.1, momentum=0.8, trust=0.01)
    train(network, build_optimizer(config, network, 2.0), 3)
    train(twin, LARS(twin.parameters(), 2.0, 0.8, 0.1, 0.01), 3)
    assert all(
        torch.equal(a, b) for a, b in zip(network.parameters(), twin.parameters(), strict=True)
    )


def test_weights_in_front_of_a_norm_may_have_any_size() -> None:
    """What a norm behind them divides by again, LARS does not notice, either."""
    torch.manual_seed(0)
    images, wanted = torch.randn(16, 5, dtype=torch.float64), torch.randn(16, 3).double()
    paths = []
    for factor in (1.0, 4.0):
        torch.manual_seed(1)
        layer = nn.Linear(5, 3, bias=False).double()
        nn.init.normal_(layer.weight).data.mul_(factor)
        optimizer = LARS(layer.parameters(), lr=2.0, trust=0.1, eps=0.0)
        for _ in range(5):
            optimizer.zero_grad()
            normed = nn.functional.batch_norm(layer(images), None, None, training=True, eps=1e-12)
            nn.functional.mse_loss(normed, wanted).backward()
            optimizer.step()
        paths.append(layer.weight.detach() / factor)
    torch.testing.assert_close(*paths, rtol=1e-6, atol=1e-8)
