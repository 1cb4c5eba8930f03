"""Loading weights: every known layout completely, everything else refused by name."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torchvision
from builders.files.checkpoint_layouts import LAYOUTS, detectron2, linear, load_state, under

from clove_ssl.backbones.build import Backbone, build_backbone
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.errors import UserError
from clove_ssl.weights.detectron2_names import torchvision_name
from clove_ssl.weights.layouts import recognise, unwrap
from clove_ssl.weights.load import load_backbone, load_weights
from clove_ssl.weights.safetensors_file import save_backbone

WEIGHTS_OF_RESNET18 = 100  # 20 convolutions, 20 batch norms with 4 tensors each


@pytest.fixture(scope="module")
def trained() -> Backbone:
    """A ResNet-18 whose every number differs from a fresh one's."""
    torch.manual_seed(1)
    backbone = build_backbone(BackboneConfig(name="resnet18"))
    for tensor in backbone.body.state_dict().values():
        tensor.copy_(torch.rand(tensor.shape) if tensor.is_floating_point() else torch.tensor(7))
    return backbone


def saved(checkpoint: object, folder: Path) -> Path:
    path = folder / "checkpoint.pth"
    torch.save(checkpoint, path)
    return path


def assert_same_weights(loaded: Backbone, original: Backbone, *, counters: bool = True) -> None:
    mine, theirs = loaded.body.state_dict(), original.body.state_dict()
    assert mine.keys() == theirs.keys()
    compared = [name for name in mine if counters or "num_batches" not in name]
    assert all(torch.equal(mine[name], theirs[name]) for name in compared)


@pytest.mark.parametrize("method", LAYOUTS)
def test_every_layout_is_recognised_and_loaded_completely(
    method: str, trained: Backbone, tmp_path: Path
) -> None:
    path = saved(LAYOUTS[method](trained.body.state_dict()), tmp_path)
    fresh = build_backbone(BackboneConfig(name="resnet18"))
    report = load_weights(fresh, path)
    assert report.layout == method
    assert report.matched == report.expected == WEIGHTS_OF_RESNET18
    assert report.licence
    assert_same_weights(fresh, trained, counters="by order" not in method)


@pytest.mark.parametrize("method", ["CLoVE", "SlotCon", "a bare backbone", "BYOL (yaox12)"])
def test_the_network_is_recognised_from_the_tensors(
    method: str, trained: Backbone, tmp_path: Path
) -> None:
    backbone = load_backbone(saved(LAYOUTS[method](trained.body.state_dict()), tmp_path))
    assert (backbone.name, backbone.stage, backbone.output_stride) == ("resnet18", "c5", 32)
    assert_same_weights(backbone, trained)


@pytest.mark.parametrize("name", ["resnet50", "resnext50_32x4d"])
def test_networks_of_one_depth_are_told_apart_by_width(name: str, tmp_path: Path) -> None:
    blank = torchvision.models.get_model(name).state_dict()
    small = {key: torch.zeros(()).expand(tensor.shape) for key, tensor in blank.items()}
    assert load_backbone(saved(small, tmp_path)).name == name


def test_cp2_comes_back_dilated_as_it_was_trained(tmp_path: Path) -> None:
    original = build_backbone(BackboneConfig(name="resnet50", output_stride=16))
    checkpoint = {"state_dict": under("module.encoder_q.backbone.", original.body.state_dict())}
    loaded = load_backbone(saved(checkpoint, tmp_path))
    assert loaded.output_stride == 16
    assert_same_weights(loaded, original)


def test_dropped_tensors_are_counted_by_place(trained: Backbone, tmp_path: Path) -> None:
    state = LAYOUTS["ReSim"](trained.body.state_dict())["state_dict"]  # type: ignore[index]
    report = load_state(build_backbone(BackboneConfig(name="resnet18")), state, tmp_path)
    teacher = len(trained.body.state_dict())
    assert report.dropped == {
        "encoder_k": teacher,
        "queue": 1,
        "encoder_q.fc": 1,
        "encoder_q.fpn": 2,
    }


def test_names_of_detectron2_are_turned_back(trained: Backbone) -> None:
    names = list(trained.body.state_dict())
    assert [torchvision_name(name) for name in detectron2(trained.body.state_dict())] == names
    assert torchvision_name("res5.2.conv3.norm.running_var") == "layer4.2.bn3.running_var"


def test_arrays_written_by_an_older_numpy_are_read(trained: Backbone, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pth"
    checkpoint = {"model": detectron2(trained.body.state_dict())}
    torch.save(checkpoint, path, _use_new_zipfile_serialization=False)
    old, new = b"cnumpy.core.multiarray\n", b"cnumpy._core.multiarray\n"
    path.write_bytes(path.read_bytes().replace(new, old))
    assert old in path.read_bytes()
    assert_same_weights(load_backbone(path), trained)


def test_wrappers_before_every_name_come_off_in_any_order() -> None:
    assert list(unwrap(linear("_orig_mod.module.conv1.weight"))) == ["conv1.weight"]
    assert list(unwrap(linear("module._orig_mod.conv1.weight"))) == ["conv1.weight"]
    mixed = linear("module.conv1.weight", "queue")
    assert list(unwrap(mixed)) == list(mixed)


def test_old_files_without_batch_counters_load_with_counters_at_zero(
    trained: Backbone, tmp_path: Path
) -> None:
    state = trained.body.state_dict()
    old = {name: value for name, value in state.items() if "num_batches" not in name}
    fresh = build_backbone(BackboneConfig(name="resnet18"))
    fresh.body.bn1.num_batches_tracked += 5
    load_state(fresh, old, tmp_path)
    assert fresh.body.bn1.num_batches_tracked == 0
    assert torch.equal(fresh.body.bn1.running_mean, trained.body.bn1.running_mean)


@pytest.mark.parametrize("shape", [(0,), (2, 2)])
def test_a_batch_counter_that_is_no_number_is_refused(
    shape: tuple[int, ...], trained: Backbone, tmp_path: Path
) -> None:
    state = trained.body.state_dict() | {"bn1.num_batches_tracked": torch.zeros(shape)}
    with pytest.raises(UserError, match=r"bn1\.num_batches_tracked.*Nothing was loaded"):
        load_backbone(saved(state, tmp_path))


def test_a_missing_tensor_is_refused_with_counts_and_nothing_is_loaded(
    trained: Backbone, tmp_path: Path
) -> None:
    state = trained.body.state_dict()
    del state["layer2.0.conv1.weight"], state["layer3.1.bn2.running_var"]
    fresh = build_backbone(BackboneConfig(name="resnet18"))
    before = {name: tensor.clone() for name, tensor in fresh.body.state_dict().items()}
    with pytest.raises(UserError, match=r"98 of 100 tensors fit, 2 missing.*layer2\.0\.conv1"):
        load_state(fresh, state, tmp_path)
    assert all(torch.equal(before[name], now) for name, now in fresh.body.state_dict().items())


def test_an_unknown_tensor_inside_the_backbone_is_refused(
    trained: Backbone, tmp_path: Path
) -> None:
    state = trained.body.state_dict() | linear("layer5.weight")
    with pytest.raises(UserError, match=r"100 of 100 tensors fit.*1 unknown \(such as layer5"):
        load_state(build_backbone(BackboneConfig(name="resnet18")), state, tmp_path)


def test_another_depth_is_refused(trained: Backbone, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="does not fit resnet34: 100 of 180 tensors fit, 80 missing"
    ):
        load_state(
            build_backbone(BackboneConfig(name="resnet34")), trained.body.state_dict(), tmp_path
        )


def test_another_width_is_refused(trained: Backbone, tmp_path: Path) -> None:
    state = trained.body.state_dict()
    state["layer1.0.conv1.weight"] = torch.zeros(32, 64, 3, 3)
    with pytest.raises(UserError, match=r"99 of 100 tensors fit.*1 of another shape"):
        load_backbone(saved(state, tmp_path))


def test_no_known_layout_is_refused_with_the_first_names(tmp_path: Path) -> None:
    path = saved({"model": linear("blocks.0.attn.qkv.weight")}, tmp_path)
    with pytest.raises(UserError, match=r"\(1, such as blocks\.0\.attn.*Known: byol, clove"):
        load_backbone(path)
    assert recognise(linear("blocks.0.attn.qkv.weight")) is None


def test_a_file_of_ours_brings_its_stage_and_can_be_trained(
    trained: Backbone, tmp_path: Path
) -> None:
    backbone = build_backbone(BackboneConfig(name="resnet18", stage="c4"))
    load_state(backbone, trained.body.state_dict(), tmp_path)
    path = tmp_path / "run" / "export" / "backbone.safetensors"
    save_backbone(backbone, path, {"method": "clove"})
    for place in (path, tmp_path / "run", str(tmp_path / "run")):
        loaded = load_backbone(place)
        assert loaded.stage == "c4"
        assert_same_weights(loaded, trained)
        assert all(parameter.requires_grad for parameter in loaded.parameters())


@pytest.mark.parametrize("name", ["regnet_y_400mf", "timm:convnext_atto"])
def test_a_file_of_ours_can_be_of_any_family(name: str, tmp_path: Path) -> None:
    if name.startswith("timm:"):
        pytest.importorskip("timm")
    original = build_backbone(BackboneConfig(name=name))
    save_backbone(original, tmp_path / "b.safetensors", {})
    loaded = load_backbone(tmp_path / "b.safetensors")
    assert loaded.name == name
    assert_same_weights(loaded, original)


def test_weights_of_another_network_name_the_right_one(trained: Backbone, tmp_path: Path) -> None:
    path = tmp_path / "b.safetensors"
    save_backbone(trained, path, {})
    with pytest.raises(UserError, match="holds a resnet18.*--backbone.name resnet18"):
        load_weights(build_backbone(BackboneConfig(name="resnet34")), path)


@pytest.mark.parametrize("size", [0, 7, 200_000])
def test_a_truncated_torch_file_is_refused(size: int, trained: Backbone, tmp_path: Path) -> None:
    path = saved(trained.body.state_dict(), tmp_path)
    os.truncate(path, size)
    with pytest.raises(UserError, match=r"checkpoint.pth (is empty|cannot be read|was not loaded)"):
        load_backbone(path)


def test_text_instead_of_a_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "page.pth"
    path.write_text("<html>404 not found</html>")
    with pytest.raises(UserError, match=r"page\.pth"):
        load_backbone(path)


class Malicious:
    """Writes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("as_zip", [True, False])
def test_code_in_a_checkpoint_does_not_run(as_zip: bool, trained: Backbone, tmp_path: Path) -> None:
    mark = tmp_path / "pwned"
    path = tmp_path / "checkpoint.pth"
    checkpoint = {"model": trained.body.state_dict(), "opt": Malicious(str(mark))}
    torch.save(checkpoint, path, _use_new_zipfile_serialization=as_zip)
    with pytest.raises(UserError, match=r"can run code .*mkdir"):
        load_backbone(path)
    assert not mark.exists()
    torch.load(path, weights_only=False)
    assert mark.exists()  # the trap itself works


@pytest.mark.parametrize("as_zip", [True, False])
def test_pickle_protocols_are_read_or_named(
    as_zip: bool, trained: Backbone, tmp_path: Path
) -> None:
    mark = tmp_path / "pwned"
    path = tmp_path / "checkpoint.pth"
    for protocol in (2, 3):
        write(trained.body.state_dict(), path, protocol, as_zip=as_zip)
        assert_same_weights(load_backbone(path), trained)
    for protocol in (4, 5):
        write({"model": Malicious(str(mark))}, path, protocol, as_zip=as_zip)
        with pytest.raises(UserError, match=f"protocol {protocol}, and only 3 .*'new.pth'"):
            load_backbone(path)
    assert not mark.exists()


def write(content: object, path: Path, protocol: int, *, as_zip: bool) -> None:
    torch.save(content, path, pickle_protocol=protocol, _use_new_zipfile_serialization=as_zip)


def test_a_plain_pickle_does_not_run_either(tmp_path: Path) -> None:
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps({"model": Malicious(str(tmp_path / "pwned"))}, protocol=2))
    with pytest.raises(UserError):
        load_backbone(path)
    assert not (tmp_path / "pwned").exists()


def test_a_place_without_a_backbone_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="clove resume"):
        load_backbone(tmp_path)
    with pytest.raises(UserError, match="nowhere does not exist"):
        load_backbone(tmp_path / "nowhere")
