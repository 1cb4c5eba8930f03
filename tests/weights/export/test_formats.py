"""Exports: each opens in the program it is made for, and gives the same features there."""

from __future__ import annotations

import json
import pickle
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
import yaml
from builders.files import checkpoint_layouts
from references.tasks.detectron2_resnet import Detectron2ResNet
from safetensors.torch import load_file
from torch import Tensor, nn

from clove_ssl.backbones.build import Backbone, build_backbone
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.errors import UserError
from clove_ssl.weights.config import FORMATS as DESCRIPTIONS
from clove_ssl.weights.config import FormatName
from clove_ssl.weights.export import formats
from clove_ssl.weights.export.exported import Exported
from clove_ssl.weights.export.formats import FORMATS, Format, Native, write_checked
from clove_ssl.weights.export.graphs import Graph, save_onnx
from clove_ssl.weights.export.hub_folder import front_matter
from clove_ssl.weights.export.usage import describe_usage
from clove_ssl.weights.load import load_backbone

METADATA = {"method": "clove", "config_hash": "0123", "licence": "MIT"}
IMAGES = torch.randn(2, 3, 96, 64, generator=torch.Generator().manual_seed(3))


def build(name: str, **options: Any) -> Backbone:
    torch.manual_seed(2)
    backbone = build_backbone(BackboneConfig(name=name, zero_init_last=False, **options))
    for module in backbone.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    return backbone.eval()


@pytest.fixture(scope="module")
def resnet18() -> Exported:
    return Exported(build("resnet18"), METADATA)


def write(exported: Exported, name: FormatName, folder: Path) -> Path:
    path = folder / f"backbone{FORMATS[name].suffix}"
    assert write_checked(exported, name, path) < 1e-5
    return path


def snippet(exported: Exported, name: FormatName, path: Path) -> str:
    found = re.findall(r"```python\n(.*?)```", describe_usage(exported, name, str(path)), re.S)
    return found[-1]


def run_snippet(exported: Exported, name: FormatName, path: Path) -> dict[str, Any]:
    """Do what the model card says."""
    names: dict[str, Any] = {"images": IMAGES}
    with torch.no_grad():
        exec(snippet(exported, name, path), names)
    return names


def expected_maps(exported: Exported) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        return exported.backbone(IMAGES)


def assert_same_maps(found: Any, exported: Exported) -> None:
    expected = list(expected_maps(exported).values())
    assert len(found) == len(expected)
    for mine, theirs in zip(expected, found, strict=True):
        assert_close(torch.as_tensor(theirs), mine)


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Within a hundred-thousandth of the largest value."""
    tolerance = 1e-5 * (1 + float(expected.abs().max()))
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


def test_every_format_is_described() -> None:
    assert DESCRIPTIONS.keys() == FORMATS.keys()


def test_safetensors_comes_back(resnet18: Exported, tmp_path: Path) -> None:
    path = write(resnet18, "safetensors", tmp_path)
    maps = run_snippet(resnet18, "safetensors", path)["maps"]
    assert_same_maps(maps.values(), resnet18)


@pytest.mark.parametrize(
    ("name", "options"),
    [("resnet18", {}), ("resnet50", {"output_stride": 16}), ("convnext_tiny", {})],
    ids=["resnet18", "dilated resnet50", "convnext_tiny"],
)
def test_torchvision_loads_it_strictly(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    exported = Exported(build(name, **options), METADATA)
    network = run_snippet(exported, "torchvision", write(exported, "torchvision", tmp_path))
    pooled = network["network"].eval()(IMAGES)
    expected = expected_maps(exported)["c5"].mean((2, 3))
    assert_close(pooled.flatten(1), expected)


@pytest.mark.parametrize(
    ("name", "options"),
    [("resnet18", {}), ("convnext_tiny", {}), ("timm:convnext_atto", {"stage": "c4"})],
    ids=["resnet18", "convnext_tiny", "timm cut at c4"],
)
def test_timm_loads_it_strictly(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("timm")
    exported = Exported(build(name, **options), METADATA)
    path = write(exported, "timm", tmp_path)
    maps = run_snippet(exported, "timm", path)["network"].eval()(IMAGES)
    assert_same_maps(maps[-len(exported.backbone.channels) :], exported)


def test_detectron2_finds_every_name_and_computes_the_same(
    resnet18: Exported, tmp_path: Path
) -> None:
    path = write(resnet18, "detectron2", tmp_path)
    content = pickle.loads(path.read_bytes())
    assert content["matching_heuristics"] is True
    network = Detectron2ResNet(18)
    assert content["model"].keys() == network.state_dict().keys()
    network.load_state_dict({name: torch.from_numpy(a) for name, a in content["model"].items()})
    assert_same_maps(network.eval()(IMAGES).values(), resnet18)


def test_names_of_a_resnet50_are_detectron2s_key_for_key(tmp_path: Path) -> None:
    exported = Exported(build("resnet50"), METADATA)
    formats.FORMATS["detectron2"].write(exported, tmp_path / "r50.pkl")
    model = pickle.loads((tmp_path / "r50.pkl").read_bytes())["model"]
    reference = Detectron2ResNet(50).state_dict()
    assert {name: array.shape for name, array in model.items()} == {
        name: tuple(tensor.shape) for name, tensor in reference.items()
    }
    assert "res4.0.shortcut.norm.running_var" in model
    assert "stem.conv1.norm.weight" in model


def test_the_pickle_is_readable_with_numpy_1(resnet18: Exported, tmp_path: Path) -> None:
    content = write(resnet18, "detectron2", tmp_path).read_bytes()
    assert b"numpy._core" not in content
    assert content.count(b"numpy.core.multiarray") == 1


@pytest.mark.parametrize(
    ("name", "options", "arguments"),
    [
        ("resnet18", {"DEPTH": 18, "RES2_OUT_CHANNELS": 64}, {"depth": 18}),
        ("resnet50", {"DEPTH": 50}, {"depth": 50}),
        (
            "resnext101_32x8d",
            {"DEPTH": 101, "NUM_GROUPS": 32, "WIDTH_PER_GROUP": 8},
            {"type": "ResNeXt", "depth": 101, "groups": 32, "base_width": 8},
        ),
    ],
)
def test_the_card_names_the_network_of_the_file(
    name: str, options: dict[str, int], arguments: dict[str, Any]
) -> None:
    with torch.device("meta"):
        network = build_backbone(BackboneConfig(name=name))
    exported = Exported(network, METADATA)
    lines = describe_usage(exported, "detectron2", "a.pkl").removeprefix("```yaml\n")
    model = yaml.safe_load(lines.removesuffix("```"))["MODEL"]
    assert model["RESNETS"] == options | {"STRIDE_IN_1X1": False, "NORM": "SyncBN"}
    assert model["BACKBONE"] == {"FREEZE_AT": 0}
    found = run_snippet(exported, "mmdetection", Path("a.pth"))["backbone"]
    usual = {"type": "ResNet", "style": "pytorch", "norm_eval": False} | arguments
    assert {key: found[key] for key in found if not key.endswith("_cfg")} == usual


def test_mmdetection_finds_torchvisions_names(resnet18: Exported, tmp_path: Path) -> None:
    content = torch.load(write(resnet18, "mmdetection", tmp_path), weights_only=True)
    assert content["meta"] == METADATA
    names = [n for n in torchvision.models.resnet18().state_dict() if not n.startswith("fc.")]
    assert list(content["state_dict"]) == names
    network = torchvision.models.resnet18()
    network.fc = nn.Identity()
    network.load_state_dict(content["state_dict"])
    expected = expected_maps(resnet18)["c5"].mean((2, 3))
    assert_close(network.eval()(IMAGES), expected)


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_mmdetection_gives_the_same_features(name: str, tmp_path: Path) -> None:
    native = FORMATS["mmdetection"].native
    assert native is not None
    if not native.is_there():
        pytest.skip("MMDetection is not installed")
    exported = Exported(build(name), METADATA)
    path = write(exported, "mmdetection", tmp_path)
    assert FORMATS["mmdetection"].checker() == ("MMDetection", native.check)
    assert native.check(exported, path) == 0


def test_transformers_opens_its_folder(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    for name in ("resnet18", "resnet50"):
        exported = Exported(build(name), METADATA)
        path = tmp_path / name
        assert write_checked(exported, "transformers", path) == 0
        assert_same_maps(run_snippet(exported, "transformers", path)["maps"], exported)


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_a_folder_for_transformers_has_its_names_and_comes_back(name: str, tmp_path: Path) -> None:
    exported = Exported(build(name), METADATA)
    path = tmp_path / "folder"
    assert write_checked(exported, "transformers", path) == 0
    assert load_file(path / "model.safetensors").keys() == (
        checkpoint_layouts.transformers(exported.backbone.body.state_dict()).keys()
    )
    config = json.loads((path / "config.json").read_text())
    assert (config["model_type"], config["downsample_in_bottleneck"]) == ("resnet", False)
    assert load_backbone(path).name == name


def test_a_program_that_is_installed_checks_in_place_of_our_reader(
    resnet18: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = FORMATS["detectron2"]
    wrong = Native("a program", "json", lambda exported, path: 0.2)
    monkeypatch.setitem(FORMATS, "detectron2", replace(real, native=wrong))
    with pytest.raises(UserError, match="features of a program differ by 2.0e-01"):
        write_checked(resnet18, "detectron2", tmp_path / "b.pkl")
    absent = Native("a program", "no_such_module", wrong.check)
    monkeypatch.setitem(FORMATS, "detectron2", replace(real, native=absent))
    assert write_checked(resnet18, "detectron2", tmp_path / "b.pkl") == 0


class Scaled(Graph):
    """Two inputs of one batch, as a detector has them."""

    outputs = ("scaled",)

    def forward(self, images: Tensor, sizes: Tensor) -> Tensor:
        return images * sizes


def test_onnx_is_written_without_warnings_of_axes_that_are_one_on_purpose(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    pytest.importorskip("onnxscript")
    free = {"images": {0: "batch"}, "sizes": {0: "batch"}}
    example = (torch.rand(2, 3), torch.rand(2, 1))
    save_onnx(Scaled(), example, tmp_path / "scaled.onnx", free=free, metadata={})
    assert [str(each.message) for each in recwarn if "axis name" in str(each.message)] == []


def test_onnx_runs_at_any_batch_and_size(resnet18: Exported, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    path = write(resnet18, "onnx", tmp_path)
    assert_same_maps(run_snippet(resnet18, "onnx", path)["outputs"], resnet18)
    session = runtime.InferenceSession(str(path))
    assert session.get_inputs()[0].shape == ["batch", 3, "height", "width"]
    assert [output.name for output in session.get_outputs()] == ["c2", "c3", "c4", "c5"]
    assert session.get_modelmeta().custom_metadata_map["licence"] == "MIT"
    for shape in ((1, 3, 64, 64), (3, 3, 97, 65), (1, 3, 33, 160)):
        images = torch.randn(shape)
        with torch.no_grad():
            expected = resnet18.backbone(images)["c5"]
        found = torch.from_numpy(session.run(["c5"], {"images": images.numpy()})[0])
        assert_close(found, expected)


def test_torch_export_of_one_stage_runs_at_any_batch_and_size(tmp_path: Path) -> None:
    exported = Exported(build("resnet18", stage="c3"), METADATA, stage="c3")
    path = tmp_path / "backbone.pt2"
    assert write_checked(exported, "torch-export", path) < 1e-5
    (found,) = run_snippet(exported, "torch-export", path)["outputs"]
    assert_close(found, expected_maps(exported)["c3"])
    program = torch.export.load(path)
    with torch.no_grad():
        assert program.module()(torch.zeros(5, 3, 65, 97))[0].shape == (5, 128, 9, 13)
    convolutions = [node for node in program.graph.nodes if "conv2d" in str(node.target)]
    assert len(convolutions) == 10  # those of the stem, layer1 and layer2


def test_a_hub_folder_opens_with_timm_and_with_this_library(
    resnet18: Exported, tmp_path: Path
) -> None:
    path = tmp_path / "hub"
    assert write_checked(resnet18, "hub", path) == 0
    config = json.loads((path / "config.json").read_text())
    assert (config["architecture"], config["clove_ssl"]["method"]) == ("resnet18", "clove")
    assert load_backbone(path).name == "resnet18"
    inside = json.loads((path / "transformers" / "config.json").read_text())
    assert (inside["model_type"], inside["depths"]) == ("resnet", [2, 2, 2, 2])
    assert load_backbone(path / "transformers").name == "resnet18"
    assert "ResNetBackbone.from_pretrained" in describe_usage(resnet18, "hub", "hub")
    pytest.importorskip("timm")
    network = run_snippet(resnet18, "hub", path)["network"].eval()
    expected = expected_maps(resnet18)["c5"]
    assert_close(network.forward_features(IMAGES), expected)


def test_the_head_of_a_hub_card_is_yaml() -> None:
    import yaml

    head = front_matter('mine: "all" of it')
    assert yaml.safe_load(head.strip("-\n"))["license_name"] == 'mine: "all" of it'


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("timm:convnext_atto", "torchvision"),
        ("timm:convnext_atto", "detectron2"),
        ("regnet_y_400mf", "timm"),
        ("convnext_tiny", "mmdetection"),
        ("wide_resnet50_2", "mmdetection"),
        ("resnet50_caffe", "torchvision"),
        ("resnet50_caffe", "detectron2"),
        ("resnext50_32x4d", "transformers"),
    ],
)
def test_a_library_without_such_a_network_is_refused(
    name: str, target: FormatName, tmp_path: Path
) -> None:
    if name.startswith("timm:"):
        pytest.importorskip("timm")
    exported = Exported(build_backbone(BackboneConfig(name=name)).eval(), METADATA)
    with pytest.raises(UserError, match=f"{name} cannot be exported.*onnx or safetensors"):
        write_checked(exported, target, tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_transformers_has_no_dilated_network(tmp_path: Path) -> None:
    exported = Exported(build("resnet50", output_stride=16), METADATA)
    with pytest.raises(UserError, match="have no dilation"):
        write_checked(exported, "transformers", tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["detectron2", "mmdetection"])
def test_a_dilated_network_that_a_library_dilates_otherwise_is_refused(
    target: FormatName, tmp_path: Path
) -> None:
    exported = Exported(build("resnet50", output_stride=16), METADATA)
    with pytest.raises(UserError, match="has dilation 1, .*'s has 2, so the same weights"):
        write_checked(exported, target, tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_a_stage_that_is_not_there_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    backbone = build_backbone(BackboneConfig(name="timm:convnext_atto", stage="c3")).eval()
    exported = Exported(backbone, METADATA, stage="c5")
    with pytest.raises(UserError, match="ends at c3. Choose one of c2, c3"):
        write_checked(exported, "torch-export", tmp_path / "x.pt2")


def test_what_does_not_agree_is_not_left_behind(
    resnet18: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = FORMATS["safetensors"]
    wrong = Format(real.suffix, real.write, lambda exported, path: 0.1, "a program")
    monkeypatch.setitem(FORMATS, "safetensors", wrong)
    with pytest.raises(UserError, match="features of a program differ by 1.0e-01"):
        write_checked(resnet18, "safetensors", tmp_path / "b.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_checked_is_not_left_behind(
    resnet18: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(exported: Exported, path: Path) -> float:
        raise RuntimeError("it does not open")

    for name in ("safetensors", "hub"):  # a file and a folder
        monkeypatch.setitem(FORMATS, name, replace(FORMATS[name], check=fail))
        with pytest.raises(RuntimeError, match="does not open"):
            write_checked(resnet18, name, tmp_path / "backbone")
        assert list(tmp_path.iterdir()) == []


def test_what_was_there_outlasts_a_check_that_is_interrupted(
    resnet18: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the file of a run that its weights come from, or a folder with more in it."""

    def interrupt(exported: Exported, path: Path) -> float:
        raise KeyboardInterrupt

    (tmp_path / "backbone").write_text("of a run")
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub/notes.txt").write_text("mine")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for name, place in (("safetensors", "backbone"), ("hub", "hub")):
        monkeypatch.setitem(FORMATS, name, replace(FORMATS[name], check=interrupt))
        with pytest.raises(KeyboardInterrupt):
            write_checked(resnet18, name, tmp_path / place)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("missing", ["onnxscript", "onnxruntime"])
def test_onnx_that_is_not_installed_is_explained(
    missing: str, resnet18: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(UserError, match=r'pip install "clove-ssl\[onnx\]"'):
        write_checked(resnet18, "onnx", tmp_path / "b.onnx")
    assert list(tmp_path.iterdir()) == []
