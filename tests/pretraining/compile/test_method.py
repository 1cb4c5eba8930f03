"""Networks compiled piece by piece: the same results, and few graphs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from builders.batches.compiling import activation_memory_in_use, method_and_batch
from builders.runs.method_runs import method_run
from torch import Tensor, nn
from torch._dynamo.utils import counters

from clove_ssl.backbones.build import Backbone, build_backbone
from clove_ssl.bench.config import BenchConfig
from clove_ssl.config.pretraining import BackboneConfig, PretrainConfig
from clove_ssl.config.views import ViewsConfig
from clove_ssl.errors import UserError
from clove_ssl.methods.base import Method, Progress, StepOutput
from clove_ssl.methods.compiled import Compilable
from clove_ssl.methods.heads import ConvProjector
from clove_ssl.methods.teacher_student import MapEncoder
from clove_ssl.pretraining import run as pretraining
from clove_ssl.pretraining.compile import ahead
from clove_ssl.pretraining.compile.method import compile_method, compile_pieces, cut
from clove_ssl.pretraining.synthetic import synthetic_batch
from clove_ssl.probes.features import FrozenFeatures
from clove_ssl.training.numerics import choose_precision
from clove_ssl.views.batch import ViewBatch

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def encoder(name: str = "resnet18") -> MapEncoder:
    torch.manual_seed(0)
    backbone = build_backbone(BackboneConfig(name=name))
    return MapEncoder(backbone, ConvProjector(backbone.out_channels, 16, 8)).train()


def outputs_and_gradient(network: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    output = network(images)
    output.square().mean().backward()
    return output.detach(), torch.cat([p.grad.flatten() for p in network.parameters()])


@pytest.mark.parametrize("name", ["resnet18", "regnet_x_400mf"])
def test_a_network_in_pieces_gives_what_it_gave_before(name: str) -> None:
    plain = encoder(name)
    pieces = copy.deepcopy(plain)
    compile_pieces(cut([pieces]), backend="eager")
    images = torch.randn(2, 3, 64, 64)
    expected, actual = outputs_and_gradient(plain, images), outputs_and_gradient(pieces, images)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert counters["stats"]["unique_graphs"] > 2


@pytest.mark.parametrize("name", ["byol", "clove", "clove-plus", "pixpro", "slotcon"])
def test_compiled_and_plain_parts_behind_the_networks_agree(name: str, tmp_path: Path) -> None:
    method, batch = method_and_batch(name, tmp_path)
    compiled = copy.deepcopy(method)
    assert isinstance(method, Compilable)
    assert isinstance(compiled, Compilable)
    for part in compiled.fixed_shape_parts():
        part.compile(dynamic=False, fullgraph=True, backend="aot_eager")
    losses = []
    for each in (method, compiled):
        output = each(batch, Progress(0, 1))
        output.loss.backward()
        losses.append(output.loss.detach())
    torch.testing.assert_close(losses[1], losses[0])
    for mine, theirs in zip(method.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(theirs.grad, mine.grad, rtol=1e-3, atol=1e-5)
    parts = len(method.fixed_shape_parts())
    assert parts <= counters["stats"]["unique_graphs"] <= 2 * parts


class Plain(Method):
    """A method that says nothing about compilation."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = build_backbone(BackboneConfig(name="resnet18"))

    def forward(self, batch: ViewBatch, progress: Progress) -> StepOutput:
        return StepOutput(self.backbone.features(batch.views[0].pixels).mean())


def test_a_method_that_says_nothing_about_it_runs_uncompiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ahead, "available_cores", lambda: 16)
    spec = ViewsConfig(local_count=0).specs()[:1]
    batch = synthetic_batch(spec, 2, device=torch.device("cpu"), dtype=torch.float32)
    method = Plain()
    compile_method(method, backend="eager")
    assert ahead.compile_ahead(method, batch, choose_precision("auto", torch.device("cpu"))) is None
    method(batch, Progress(0, 1)).loss.backward()
    assert not counters["stats"]


def test_pieces_of_one_shape_share_a_graph() -> None:
    network = encoder("resnet50")
    compile_pieces(cut([network]), backend="eager")
    network(torch.randn(2, 3, 64, 64))
    start, end, head = 1, 1, 1
    # Of 15 cuts between 16 blocks: behind the first of a stage, inside it, and to the next stage.
    assert counters["stats"]["unique_graphs"] == start + (3 + 3 + 3 + 2) + end + head


def test_blocks_of_one_shape_share_a_graph() -> None:
    backbone = build_backbone(BackboneConfig(name="resnet50"))  # 16 blocks of 8 shapes, a stem
    compile_pieces(cut([backbone]), backend="eager")
    backbone(torch.randn(2, 3, 64, 64))
    assert counters["stats"]["unique_graphs"] == 8 + 1


def kept_bytes(run: Callable[[Tensor], Tensor], network: nn.Module) -> int:
    """Memory of what the backward pass needs, besides the weights."""
    weights = {p.untyped_storage().data_ptr() for p in network.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = run(torch.randn(4, 3, 64, 64))
    total = sum(size for place, size in kept.items() if place not in weights)
    output.sum().backward()
    return total


def test_pieces_keep_no_more_for_the_backward_pass_than_the_whole() -> None:
    whole = build_backbone(BackboneConfig(name="resnet18")).train()
    pieces = copy.deepcopy(whole)
    partitioned = "aot_eager_decomp_partition"
    compile_pieces(cut([pieces]), backend=partitioned)
    compiled = torch.compile(whole.features, backend=partitioned, dynamic=False)
    # The stem's padded pixels are 3 % here; a mask of every block's ReLU would be 4 % more.
    assert kept_bytes(pieces.features, pieces) <= 1.04 * kept_bytes(compiled, whole)


def test_student_and_teacher_of_two_sizes_stay_compiled() -> None:
    student = encoder("resnet18")
    teacher = copy.deepcopy(student).requires_grad_(False)
    compile_pieces(cut([student, teacher]), backend="eager")
    for side in (64, 32):
        student(torch.randn(2, 3, side, side))
    with torch.no_grad():
        teacher(torch.randn(2, 3, 64, 64))
    before = counters["stats"]["unique_graphs"]
    student(torch.randn(2, 3, 64, 64))
    with torch.no_grad():
        teacher(torch.randn(2, 3, 64, 64))
    assert counters["stats"]["unique_graphs"] == before
    assert not counters["graph_break"]


def test_layers_of_torch_itself_are_compiled_too() -> None:
    heads = [nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)) for _ in range(2)]
    rows = torch.randn(3, 4)
    expected = [head(rows) for head in heads]
    compile_pieces(heads, backend="eager")
    torch.testing.assert_close([head(rows) for head in heads], expected)
    assert counters["stats"] == {"calls_captured": 3, "unique_graphs": 1}  # of one shape


def test_names_of_parameters_stay() -> None:
    plain = encoder()
    pieces = copy.deepcopy(plain)
    compile_pieces(cut([pieces]), backend="eager")
    assert list(pieces.state_dict()) == list(plain.state_dict())


def test_a_copy_has_weights_of_its_own() -> None:
    network = encoder()
    compile_pieces(cut([network]), backend="eager")
    twin = copy.deepcopy(network)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        before = twin.eval()(images)
        for parameter in network.parameters():
            parameter.zero_()
        assert torch.equal(twin(images), before)


def test_a_probe_of_a_compiled_backbone_reads_the_stage_it_names() -> None:
    backbone = build_backbone(BackboneConfig(name="resnet18"))
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    expected = FrozenFeatures(backbone, ["c4"], device="cpu")(images)
    compile_pieces(cut([backbone]), backend="eager")
    assert torch.equal(FrozenFeatures(backbone, ["c4"], device="cpu")(images), expected)


def test_a_backbone_alone_can_be_compiled() -> None:
    backbone: Backbone = build_backbone(BackboneConfig(name="resnet18")).eval()
    images = torch.randn(1, 3, 64, 64)
    expected = backbone(images)
    compile_pieces(cut([backbone]), backend="eager")
    for stage, actual in backbone(images).items():
        torch.testing.assert_close(actual, expected[stage], rtol=1e-4, atol=1e-5)


def kept_numbers(network: nn.Module, images: Tensor) -> tuple[int, Tensor]:
    """How many numbers wait for the backward pass, and the gradient they lead to."""
    sizes: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = network(images).square().mean()
    loss.backward()
    return sum(sizes), torch.cat([p.grad.flatten() for p in network.parameters()])


def test_fewer_activations_are_kept_where_a_part_is_asked_for() -> None:
    torch.manual_seed(0)
    layers = [[nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU()] for _ in range(3)]
    whole = nn.Sequential(*(layer for block in layers for layer in block))
    part, images = copy.deepcopy(whole), torch.randn(2, 3, 32, 32)
    # The backend of the tests that divides graphs as the default one does, without a C compiler.
    compile_pieces(cut([whole]), backend="aot_eager_decomp_partition")
    all_kept, gradient = kept_numbers(whole, images)
    torch._dynamo.reset()
    compile_pieces(cut([part]), backend="aot_eager_decomp_partition", activation_memory=0.4)
    some_kept, same_gradient = kept_numbers(part, images)
    assert some_kept < 0.8 * all_kept
    torch.testing.assert_close(same_gradient, gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5])
def test_what_is_not_a_share_of_the_activations_is_refused(share: float) -> None:
    for make in (partial(PretrainConfig, out=Path("run")), BenchConfig):
        with pytest.raises(
            UserError, match="activation_memory is .* expected a number above 0, up to 1"
        ):
            make(activation_memory=share)


def test_the_share_of_a_run_reaches_the_compiler_and_is_announced(tmp_path: Path) -> None:
    with torch.compiler.set_stance("force_eager"):
        pretraining.pretrain(one_step(tmp_path / "run", compile="always", activation_memory=0.5))
    assert activation_memory_in_use() == 0.5
    assert "50% kept" in (tmp_path / "run" / "log.txt").read_text()


def test_a_share_that_nobody_compiles_is_pointed_out(tmp_path: Path) -> None:
    pretraining.pretrain(one_step(tmp_path / "run", compile="never", activation_memory=0.5))
    assert "activation_memory=0.5 has no effect" in (tmp_path / "run" / "log.txt").read_text()


def one_step(out: Path, **changes: object) -> PretrainConfig:
    return method_run(out, "moco", steps=1, **changes)
