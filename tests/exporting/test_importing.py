"""Checkpoints that need more than a prefix: branches, dialects, folded norms, whole runs."""

from __future__ import annotations

import json
import pickle
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from builders.files.checkpoint_layouts import (
    LAYOUTS,
    detectron2,
    folded_caffe2,
    linear,
    load_state,
    other,
    under,
    with_neutral_statistics,
)
from safetensors.torch import save_file
from torch import Tensor, nn

from clove_ssl import cli
from clove_ssl.backbones.build import Backbone, build_backbone
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.errors import UserError
from clove_ssl.views.batch import IMAGENET_MEAN, IMAGENET_STD
from clove_ssl.weights.convnext_names import timm_name, torchvision_name_of_timm
from clove_ssl.weights.detectron2_names import detectron2_name, torchvision_name
from clove_ssl.weights.dialects import why_dropped
from clove_ssl.weights.layouts import LAYOUTS as TABLE
from clove_ssl.weights.layouts import LICENCES
from clove_ssl.weights.load import load_backbone, load_weights, read_backbone
from clove_ssl.weights.safetensors_file import read_backbone_file

State = dict[str, Tensor]


def randomized(name: str, **options: object) -> Backbone:
    """A network that no initialisation could equal, with features of a sensible size."""
    torch.manual_seed(1)
    backbone = build_backbone(BackboneConfig(name=name, zero_init_last=False, **options))  # type: ignore[arg-type]
    for module in backbone.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.0)
            nn.init.uniform_(module.bias, -0.1, 0.1)
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    return backbone.eval()


@pytest.fixture(scope="module")
def state() -> State:
    return {
        name: tensor.clone() for name, tensor in randomized("resnet18").body.state_dict().items()
    }


def saved(checkpoint: object, folder: Path, name: str = "checkpoint.pth") -> Path:
    torch.save(checkpoint, folder / name)
    return folder / name


def same(backbone: Backbone, state: State) -> bool:
    loaded = backbone.body.state_dict()
    assert loaded.keys() == state.keys()
    return [name for name in state if not torch.equal(loaded[name], state[name])] == []


@pytest.mark.parametrize(
    ("layout", "default"),
    [
        ("CLoVE", "student"),
        ("MoCo v2", "student"),
        ("SlotCon", "teacher"),
        ("DenseCL", "student"),
        ("DINO", "teacher"),
    ],
)
def test_the_other_branch_can_be_asked_for(
    layout: str, default: str, state: State, tmp_path: Path
) -> None:
    path = saved(LAYOUTS[layout](state), tmp_path)
    unusual = "teacher" if default == "student" else "student"
    assert same(load_backbone(path), state)
    assert same(load_backbone(path, branch=default), state)  # type: ignore[arg-type]
    assert same(load_backbone(path, branch=unusual), other(state))  # type: ignore[arg-type]


def test_a_pair_without_any_other_name_is_refused_until_somebody_says_whose_it_is(
    state: State, tmp_path: Path
) -> None:
    pair = {**under("module.encoder_q.", state), **under("module.encoder_k.", other(state))}
    path = saved({"state_dict": pair}, tmp_path)
    with pytest.raises(UserError, match=r"holds a backbone twice.*--branch student"):
        load_backbone(path)
    assert same(load_backbone(path, method="moco"), state)
    assert same(load_backbone(path, method="slotcon"), other(state))
    assert same(load_backbone(path, branch="teacher"), other(state))


def test_a_branch_that_is_not_there_is_refused(state: State, tmp_path: Path) -> None:
    path = saved(LAYOUTS["VICRegL"](state), tmp_path)
    with pytest.raises(UserError, match="VICRegL, but it holds no teacher"):
        load_backbone(path, branch="teacher")


def test_an_unknown_method_gets_a_suggestion(state: State, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'slotcan'.*Did you mean 'slotcon'"):
        load_backbone(saved(state, tmp_path), method="slotcan")


def test_every_layout_states_a_licence_and_a_method_names_it_for_bare_files(
    state: State, tmp_path: Path
) -> None:
    assert all(LICENCES[layout.method] for layout in TABLE)
    path = saved({"state_dict": state}, tmp_path)
    assert "not told by the file" in read_backbone(path)[1].licence
    assert read_backbone(path, method="vicregl")[1].licence.startswith("CC-BY-NC")
    assert read_backbone(path, method="torchvision")[1].licence == "BSD-3-Clause"


def test_a_bare_backbone_may_name_its_author(state: State, tmp_path: Path) -> None:
    report = read_backbone(saved({"state_dict": state, "author": "DenseCL"}, tmp_path))[1]
    assert (report.method, report.licence) == ("densecl", LICENCES["densecl"])
    other_author = {"state_dict": state, "author": ["somebody"]}
    assert read_backbone(saved(other_author, tmp_path))[1].method == ""


def test_files_that_look_like_those_of_another_method_say_so(state: State, tmp_path: Path) -> None:
    path = saved(LAYOUTS["MoCo v2"](state), tmp_path)
    assert "say --method resim" in read_backbone(path)[1].licence
    assert read_backbone(path, method="moco")[1].licence == LICENCES["moco"]
    assert read_backbone(path, method="resim")[1].licence == LICENCES["resim"]


def test_a_training_checkpoint_of_mmengine_loads_with_its_curves(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("mmengine.logging.history_buffer")
    module.HistoryBuffer = type("HistoryBuffer", (), {"__module__": module.__name__})  # type: ignore[attr-defined]
    for name in ("mmengine", "mmengine.logging", module.__name__):
        monkeypatch.setitem(sys.modules, name, module)
    curve = module.HistoryBuffer()
    curve._log_history = np.arange(3.0)
    path = saved(
        {**LAYOUTS["MoCo v2 (OpenMMLab)"](state), "message_hub": {"log_scalars": {"loss": curve}}},
        tmp_path,
    )
    monkeypatch.undo()
    assert same(load_backbone(path), state)


def test_whole_numbers_are_no_weights(state: State, tmp_path: Path) -> None:
    counted = state | {"layer1.0.conv1.weight": torch.ones(64, 64, 3, 3, dtype=torch.int8)}
    with pytest.raises(UserError, match=r"no weight \(such as layer1.0.conv1.weight, torch.int8\)"):
        load_backbone(saved(counted, tmp_path))


def test_every_place_of_the_known_files_has_a_reason(state: State, tmp_path: Path) -> None:
    fresh = build_backbone(BackboneConfig(name="resnet18"))
    places = {
        place
        for layout in ("CLoVE", "SlotCon", "ReSim", "DetCo", "SetSim", "DenseCL", "BYOL (yaox12)")
        for place in load_state(
            fresh, next(iter(LAYOUTS[layout](state).values())), tmp_path
        ).dropped
    }
    assert {"encoder_k", "queue2", "self_attn", "online_network.projetion"} <= places
    assert "outside the backbone" not in {why_dropped(place) for place in places}
    assert why_dropped("optimizer_ghost") == "outside the backbone"


def test_names_travel_to_detectron2_and_back() -> None:
    names = list(torchvision.models.resnet50().state_dict())
    mine = {name: torch.zeros(1) for name in names if not name.startswith("fc.")}
    assert [detectron2_name(name) for name in mine] == list(detectron2(mine))
    assert [torchvision_name(detectron2_name(name)) for name in mine] == list(mine)


def msra_pickle(backbone: Backbone, folder: Path, protocol: int = 2) -> Path:
    path = folder / "R-50.pkl"
    path.write_bytes(pickle.dumps(folded_caffe2(backbone.body.state_dict()), protocol))
    return path


def test_msra_weights_give_the_features_of_their_own_program(tmp_path: Path) -> None:
    caffe = randomized("resnet50_caffe")
    caffe.body.load_state_dict(with_neutral_statistics(caffe.body.state_dict()))
    path = msra_pickle(caffe, tmp_path)
    loaded, report = read_backbone(path)
    assert (loaded.name, report.layout) == ("resnet50_caffe", "MSRA")
    assert report.matched == report.expected == 265
    assert report.dropped == {"fc1000": 2, "conv1_b": 1}
    assert len(report.notes) == 2

    pixels = torch.rand(1, 3, 64, 64)  # RGB from 0 to 1
    mean, std = (torch.tensor(v).reshape(1, 3, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))
    blobs = pickle.loads(path.read_bytes())
    caffe.body.conv1.weight.data = torch.from_numpy(blobs["conv1_w"])
    with torch.no_grad():
        theirs = caffe(255 * (pixels - mean).flip(1))  # BGR, mean only
        mine = loaded.eval()((pixels - mean) / std)
    for stage in theirs:
        torch.testing.assert_close(mine[stage], theirs[stage], rtol=1e-4, atol=1e-5)


def test_caffe2_files_with_the_state_of_their_optimizer_load(tmp_path: Path) -> None:
    neutral = with_neutral_statistics(randomized("resnet50_caffe").body.state_dict())
    blobs = folded_caffe2(neutral)
    momenta = {f"{name}_momentum": blob for name, blob in blobs.items() if name.endswith("_w")}
    path = tmp_path / "model_final.pkl"
    path.write_bytes(pickle.dumps({"blobs": blobs | momenta, "cfg": "MODEL: {}"}, protocol=2))
    loaded, report = read_backbone(path)
    assert loaded.name == "resnet50_caffe"
    assert report.matched == report.expected == 265
    assert report.dropped["_momentum"] == 53
    assert why_dropped("_momentum") == "state of the optimizer"


def test_folded_norms_of_another_network_are_refused(tmp_path: Path) -> None:
    state = randomized("resnext50_32x4d").body.state_dict()
    path = tmp_path / "X-50.pkl"
    path.write_bytes(pickle.dumps({"model": detectron2(with_neutral_statistics(state))}))
    with pytest.raises(UserError, match=r"holds a resnext50_32x4d whose batch norms are folded"):
        load_backbone(path)


def test_the_older_resnet_strides_in_its_first_convolution() -> None:
    older, usual = (build_backbone(BackboneConfig(name=n)) for n in ("resnet50_caffe", "resnet50"))
    assert older.strides == usual.strides
    assert older.body.layer2[0].conv1.stride == (2, 2)
    assert older.body.layer2[0].conv2.stride == (1, 1)
    assert list(older.state_dict()) == list(usual.state_dict())


def test_msra_weights_are_refused_by_a_network_with_another_stride(tmp_path: Path) -> None:
    caffe = build_backbone(BackboneConfig(name="resnet50_caffe", zero_init_last=False))
    nn.init.uniform_(caffe.body.bn1.weight)
    path = msra_pickle(caffe, tmp_path)
    with pytest.raises(UserError, match=r"strides in another.*--backbone.name resnet50_caffe"):
        load_weights(build_backbone(BackboneConfig(name="resnet50")), path)


def test_a_detector_made_from_msra_weights_is_recognised_by_its_neutral_statistics(
    tmp_path: Path,
) -> None:
    neutral = with_neutral_statistics(randomized("resnet50_caffe").body.state_dict())
    model = {f"backbone.bottom_up.{name}": array for name, array in detectron2(neutral).items()}
    (tmp_path / "model_final.pkl").write_bytes(pickle.dumps({"model": model, "__author__": "zoo"}))
    assert load_backbone(tmp_path / "model_final.pkl").name == "resnet50_caffe"


def convnext_of_authors(state: State) -> State:
    """The names of the ConvNeXt authors' program."""
    parts = {"block.0": "dwconv", "block.2": "norm", "block.3": "pwconv1", "block.5": "pwconv2"}
    renamed = {}
    for name, tensor in state.items():
        words = name.split(".")
        stage = int(words[1])
        if stage % 2 == 0:
            renamed[f"downsample_layers.{stage // 2}.{'.'.join(words[2:])}"] = tensor
        elif words[3] == "layer_scale":
            renamed[f"stages.{stage // 2}.{words[2]}.gamma"] = tensor.flatten()
        else:
            part = parts[".".join(words[3:5])]
            renamed[f"stages.{stage // 2}.{words[2]}.{part}.{words[5]}"] = tensor
    return renamed | linear("norm.weight", "head.weight")


def test_a_convnext_of_its_authors_loads_also_behind_a_prefix(tmp_path: Path) -> None:
    original = build_backbone(BackboneConfig(name="convnext_tiny"))
    theirs = convnext_of_authors(original.body.state_dict())
    path = saved({"model": under("module.backbone.", theirs)}, tmp_path)
    loaded, report = read_backbone(path)
    assert loaded.name == "convnext_tiny"
    assert report.dropped == {"backbone.norm": 1, "backbone.head": 1}
    assert same(loaded, original.body.state_dict())


def test_convnext_names_travel_to_timm_and_back() -> None:
    for name in build_backbone(BackboneConfig(name="convnext_tiny")).body.state_dict():
        assert torchvision_name_of_timm(timm_name(name)) == name


@pytest.mark.parametrize(
    ("name", "found"),
    [("resnet18", "resnet18"), ("convnext_tiny", "convnext_tiny")],
)
def test_networks_that_timm_shares_with_torchvision_are_recognised(
    name: str, found: str, tmp_path: Path
) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    network = timm.create_model(name).eval()
    save_file(network.state_dict(), tmp_path / "model.safetensors")
    loaded = load_backbone(tmp_path / "model.safetensors")
    assert loaded.name == found
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        expected = network.forward_intermediates(images, intermediates_only=True, norm=False)[-1]
        torch.testing.assert_close(loaded.eval()(images)["c5"], expected, rtol=1e-4, atol=1e-5)


def test_another_network_of_timm_is_named_by_the_user_or_by_its_folder(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    network = timm.create_model("resnet18d", num_classes=7)
    save_file(network.state_dict(), tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="--architecture timm:NAME"):
        load_backbone(tmp_path / "model.safetensors")
    backbone, report = read_backbone(tmp_path / "model.safetensors", architecture="timm:resnet18d")
    assert report.dropped == {"fc": 2}
    assert torch.equal(backbone.body.layer4[1].conv2.weight, network.layer4[1].conv2.weight)
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "resnet18d"}))
    assert load_backbone(tmp_path).name == "timm:resnet18d"


@pytest.mark.parametrize("name", ["resnet18", "seresnet18", "resnetblur18"])
@pytest.mark.parametrize("safe", [True, False])
def test_a_folder_that_timm_saved_is_the_network_it_names(
    name: str, safe: bool, tmp_path: Path
) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    network = timm.create_model(name, num_classes=3).eval()
    timm.models.save_for_hf(network, tmp_path, safe_serialization=safe)
    loaded = load_backbone(tmp_path).eval()
    assert loaded.name == (name if name == "resnet18" else f"timm:{name}")
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(loaded(images)["c5"], network.forward_features(images))


def test_an_older_folder_of_transformers_has_a_pickle(state: State, tmp_path: Path) -> None:
    saved(LAYOUTS["transformers"](state), tmp_path, "pytorch_model.bin")
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "resnet", "downsample_in_bottleneck": False}))
    backbone, report = read_backbone(tmp_path)
    assert same(backbone, state)
    assert report.dropped == {"classifier": 2}
    config.write_text(json.dumps({"model_type": "resnet", "downsample_in_bottleneck": True}))
    with pytest.raises(UserError, match="stride in their first convolution"):
        load_backbone(tmp_path)


def test_a_foreign_tensor_in_a_file_of_timm_is_refused(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    state = timm.create_model("resnet18d").state_dict() | linear("layer9.weight")
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"1 unknown \(such as layer9"):
        read_backbone(tmp_path / "model.safetensors", architecture="timm:resnet18d")


def test_a_regnet_has_to_be_named(tmp_path: Path) -> None:
    original = build_backbone(BackboneConfig(name="regnet_x_400mf"))
    path = saved(original.body.state_dict(), tmp_path)
    with pytest.raises(UserError, match="--architecture regnet"):
        load_backbone(path)
    loaded, _ = read_backbone(path, architecture="regnet_x_400mf")
    assert same(loaded, original.body.state_dict())


def test_numbers_that_are_not_finite_are_refused(state: State, tmp_path: Path) -> None:
    broken = state | {"layer1.0.conv1.weight": torch.full((64, 64, 3, 3), torch.nan)}
    with pytest.raises(UserError, match=r"not finite in 1 tensors \(such as layer1.0.conv1"):
        load_backbone(saved(broken, tmp_path))


def test_import_reports_and_writes_a_file_that_keeps_the_licence(
    state: State, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = saved(LAYOUTS["SlotCon"](state), tmp_path), tmp_path / "backbone.safetensors"
    assert cli.main(["import", str(path), "--out", str(out)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for fact in (
        "recognised SlotCon (teacher)",
        "network resnet18",
        "tensors 100 of 100 matched",
        "dropped encoder_q: 120 (the student, which is not the branch taken)",
        "dropped center: 1 (head; a task brings its own)",
        "licence Apache-2.0",
    ):
        assert fact in said
    metadata = read_backbone_file(out)[1]
    assert metadata["origin"] == "checkpoint.pth"
    again, report = read_backbone(out)
    assert same(again, state)
    assert (report.method, report.branch, report.licence) == ("slotcon", "teacher", "Apache-2.0")
    with pytest.raises(UserError, match="that of the teacher.*--branch student"):
        load_backbone(out, branch="student")


def test_import_takes_the_branch_and_the_method_from_the_command_line(
    state: State, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = saved(LAYOUTS["CLoVE"](state), tmp_path), tmp_path / "teacher.safetensors"
    assert cli.main(["import", str(path), "--branch", "teacher", "--out", str(out)]) == 0
    assert "recognised CLoVE (teacher)" in " ".join(capsys.readouterr().out.split())
    assert same(load_backbone(out), other(state))
