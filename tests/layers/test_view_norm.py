"""Several views in one pass are normalised as each would be on its own."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from builders.runs.method_runs import method_run
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from clove_ssl.backbones.build import build_backbone
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.layers.normalization import SynchronizedBatchNorm2d, remade, replace_norms
from clove_ssl.layers.view_norm import NormByView, normalize_by_view
from clove_ssl.methods.base import Progress
from clove_ssl.methods.byol.config import BYOLConfig
from clove_ssl.methods.clove.config import CLoVEConfig
from clove_ssl.methods.config import QueuedConfig
from clove_ssl.methods.teacher_student import StudentMethod, TeacherStudentMethod
from clove_ssl.pretraining.synthetic import synthetic_batch
from clove_ssl.probes.features import FrozenFeatures


def network(*, affine: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Conv2d(3, 5, 3),
        nn.BatchNorm2d(5, affine=affine),
        nn.ReLU(),
        nn.Conv2d(5, 4, 1),
        nn.Sequential(nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(3), nn.BatchNorm1d(3)),
    ).double()
    layers(torch.zeros(2, 3, 6, 6, dtype=torch.double))
    for parameter in layers.parameters():
        nn.init.normal_(parameter)
    return layers


def plain_norm(norm: _BatchNorm) -> _BatchNorm:
    return remade(norm, nn.BatchNorm1d if norm.num_features == 3 else nn.BatchNorm2d)


def state(layers: nn.Module) -> dict[str, Tensor]:
    gradients = {f"{n}.grad": p.grad for n, p in layers.named_parameters() if p.grad is not None}
    return {**{name: value.clone() for name, value in layers.state_dict().items()}, **gradients}


@given(views=st.integers(2, 4), images=st.integers(2, 5), affine=st.booleans())
def test_one_pass_by_view_equals_a_pass_for_each_view(
    views: int, images: int, affine: bool
) -> None:
    apart = network(affine=affine)
    together = copy.deepcopy(apart)
    assert normalize_by_view(together, views=views)
    pixels = torch.randn(views * images, 3, 6, 6, dtype=torch.double)
    expected = torch.cat([apart(view) for view in pixels.chunk(views)])
    result = together(pixels)
    torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-9)
    torch.autograd.backward([expected.square().sum(), result.square().sum()])
    torch.testing.assert_close(state(together), state(apart), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("affine", [True, False])
def test_gradients(affine: bool) -> None:
    layer = nn.Sequential(nn.BatchNorm2d(3, affine=affine)).double()
    assert normalize_by_view(layer, views=2)
    pixels = torch.randn(4, 3, 2, 2, dtype=torch.double, requires_grad=True)
    inputs = (pixels, *layer.parameters())

    def run(features: Tensor, *_: Tensor) -> Tensor:
        result: Tensor = layer(features)
        return result

    assert torch.autograd.gradcheck(run, inputs)


def test_half_precision_is_normalised_in_single() -> None:
    layer = nn.Sequential(nn.BatchNorm2d(3))
    assert normalize_by_view(layer, views=2)
    pixels = (torch.randn(8, 3, 4, 4) + 30).bfloat16().to(memory_format=torch.channels_last)
    result = layer(pixels)
    assert result.dtype == torch.bfloat16
    assert result.is_contiguous(memory_format=torch.channels_last)
    exact = nn.BatchNorm2d(3)(pixels[:4].float())
    torch.testing.assert_close(result[:4].float(), exact, rtol=1e-2, atol=1e-2)


def test_tensors_stay_the_same_objects() -> None:
    layers = network()
    before = {**dict(layers.named_parameters()), **dict(layers.named_buffers())}
    normalize_by_view(layers, views=2)
    after = {**dict(layers.named_parameters()), **dict(layers.named_buffers())}
    assert list(after) == list(before)
    assert all(after[name] is tensor for name, tensor in before.items())


def test_in_eval_mode_and_remade_it_is_plain() -> None:
    plain = network()
    by_view = copy.deepcopy(plain)
    normalize_by_view(by_view, views=2)
    pixels = torch.randn(5, 3, 6, 6, dtype=torch.double)  # an odd number: no two views
    assert torch.equal(by_view.eval()(pixels), plain.eval()(pixels))
    replace_norms(
        by_view,
        lambda norm: remade(norm, nn.BatchNorm2d if norm.num_features > 3 else nn.BatchNorm1d),
    )
    assert torch.equal(by_view.train()(pixels), plain.train()(pixels))
    assert state(by_view).keys() == state(plain).keys()


@pytest.mark.parametrize(
    "odd",
    [
        SynchronizedBatchNorm2d(5),
        nn.BatchNorm2d(5, momentum=None),
        nn.BatchNorm2d(5, track_running_stats=False),
    ],
)
def test_other_norms_are_left_alone(odd: nn.Module) -> None:
    layers = nn.Sequential(nn.BatchNorm2d(5), odd)
    assert not normalize_by_view(layers, views=2)
    assert not any(isinstance(layer, NormByView) for layer in layers.modules())


def test_compiled_it_has_the_same_gradients(fresh_compiler: None) -> None:
    """torch 2.11 compiles a conversion to the type that is there already into zeros."""
    plain, pixels = network(), torch.randn(6, 3, 6, 6, dtype=torch.double)
    normalize_by_view(plain, views=2)
    compiled = copy.deepcopy(plain)
    compiled.compile(dynamic=False, backend="aot_eager", fullgraph=True)
    torch.autograd.backward([plain(pixels).square().sum(), compiled(pixels).square().sum()])
    torch.testing.assert_close(state(compiled), state(plain), rtol=1e-9, atol=1e-9)


def one_step(method: nn.Module, batch: object) -> dict[str, Tensor]:
    output = method(batch, Progress(1, 2))  # CLoVE Plus measures its balance in the second step
    output.loss.backward()
    return {**state(method), **output.metrics, "loss": output.loss.detach()}


@pytest.mark.parametrize("name", ["slotcon", "pixpro", "byol", "clove", "clove-plus"])
def test_a_method_that_is_to_be_compiled_normalises_each_view_in_one_pass(
    name: str, tmp_path: Path
) -> None:
    config = method_run(tmp_path, name)
    chosen = config.method
    if isinstance(chosen, BYOLConfig | CLoVEConfig):
        large_views = replace(chosen.views, local_count=0)
        chosen = replace(chosen, joint_views=False, views=large_views)
    method = chosen.build(build_backbone(config.backbone)).double()
    batch = synthetic_batch(method.views(), 4, device=torch.device("cpu"), dtype=torch.double)
    twin = copy.deepcopy(method)
    twin.before_compilation()
    assert isinstance(twin, StudentMethod)
    assert twin.passes_together
    assert not twin.joins_views
    expected, found = one_step(method, batch), one_step(twin, batch)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("odd", ["encoder", "teacher"])
def test_a_network_that_cannot_be_converted_leaves_the_other_as_it_is(
    odd: str, tmp_path: Path
) -> None:
    config = method_run(tmp_path, "pixpro")
    method = config.method.build(build_backbone(config.backbone)).double()
    replace_norms(getattr(method, odd), lambda norm: remade(norm, SynchronizedBatchNorm2d))
    batch = synthetic_batch(method.views(), 4, device=torch.device("cpu"), dtype=torch.double)
    twin = copy.deepcopy(method)
    assert isinstance(twin, TeacherStudentMethod)
    twin.before_compilation()
    assert not twin.passes_together
    assert not any(isinstance(layer, NormByView) for layer in twin.modules())
    torch.testing.assert_close(one_step(twin, batch), one_step(method, batch))


def test_a_method_can_be_made_ready_for_compilation_twice(tmp_path: Path) -> None:
    config = method_run(tmp_path, "pixpro")
    method = config.method.build(build_backbone(config.backbone))
    assert isinstance(method, TeacherStudentMethod)
    for _ in range(2):
        method.before_compilation()
        assert method.passes_together


@pytest.mark.parametrize("name", ["moco", "densecl", "inscon", "setsim", "resim", "cp2", "detco"])
def test_a_method_that_is_to_be_compiled_normalises_groups_of_keys_in_one_pass(
    name: str, tmp_path: Path
) -> None:
    config = method_run(tmp_path, name)
    assert isinstance(config.method, QueuedConfig)
    chosen = replace(config.method, shuffle_groups=2)
    method = chosen.build(build_backbone(config.backbone)).double()
    batch = synthetic_batch(method.views(), 4, device=torch.device("cpu"), dtype=torch.double)
    twin = copy.deepcopy(method)
    twin.before_compilation()
    passes: list[int] = []
    twin.teacher.module.register_forward_pre_hook(lambda _, images: passes.append(len(images[0])))
    expected, found = one_step(method, batch), one_step(twin, batch)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert set(passes) == {2 if name == "inscon" else 4}  # whose images show two photos each
    method.eval(), twin.eval()
    with torch.no_grad():
        losses = [each(batch, Progress(0, 1)).loss for each in (method, twin)]
    torch.testing.assert_close(*losses)


def test_probes_take_batches_of_any_size() -> None:
    backbone = build_backbone(BackboneConfig(name="resnet18"))
    twin = copy.deepcopy(backbone)
    normalize_by_view(twin, views=2)
    images = torch.randint(0, 256, (3, 3, 64, 64), dtype=torch.uint8)
    maps = []
    for network in (backbone, twin):
        features = FrozenFeatures(network, ["c4"], device="cpu")
        features.calibrate(images)
        maps.append(features(images))
    assert torch.equal(*maps)
