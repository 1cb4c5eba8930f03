"""A last stage of another size has the same features, wherever a run's weights are read."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from builders.runs.tiny_runs import NO_CHECKPOINTS, RESNET18, tiny_config
from torch import Tensor, nn

from clove_ssl.backbones.build import Backbone, build_backbone
from clove_ssl.backbones.last_norm import size_last_stage
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.exporting.command import export_backbone
from clove_ssl.pretraining.run import pretrain
from clove_ssl.weights.config import ExportConfig
from clove_ssl.weights.load import load_backbone
from clove_ssl.weights.safetensors_file import save_backbone


def trained_a_little(name: str, **options: object) -> Backbone:
    """A network whose statistics and weights are not those it began with."""
    torch.manual_seed(0)
    backbone = build_backbone(BackboneConfig(name=name, zero_init_last=False, **options)).double()
    for norm in (each for each in backbone.modules() if isinstance(each, nn.BatchNorm2d)):
        norm.eps = 1e-12  # or the factor would not cancel, by some millionths
    with torch.no_grad():
        for weight in (each for each in backbone.parameters() if each.ndim == 4):
            weight.mul_(1.7)
    backbone(torch.rand(4, 3, 64, 64, dtype=torch.float64))
    return backbone.eval()


def state_of(backbone: Backbone) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in backbone.body.state_dict().items()}


@pytest.mark.parametrize("name", ["resnet18", "resnext50_32x4d", "resnet50_caffe"])
@pytest.mark.parametrize("stage", ["c2", "c5"])
def test_features_stay_and_norms_are_those_asked_for(name: str, stage: str) -> None:
    backbone = trained_a_little(name, stage=stage, last_norm=0.5)
    images = torch.rand(2, 3, 64, 64, dtype=torch.float64)
    with torch.no_grad():
        before = backbone.features(images)
        size_last_stage(backbone, backbone.body.state_dict())
        torch.testing.assert_close(backbone.features(images), before, rtol=1e-6, atol=1e-6)
    layer = backbone.body.get_submodule(f"layer{int(stage[1]) - 1}")
    convolutions = [each for each in layer.modules() if isinstance(each, nn.Conv2d)]
    for each in convolutions:
        began_with = math.sqrt(2 * each.in_channels / each.groups)
        assert each.weight.norm().item() == pytest.approx(0.5 * began_with)


def test_fresh_convolutions_have_the_norm_that_shares_are_of() -> None:
    backbone = trained_a_little("resnet50", last_norm=1.0)
    torch.manual_seed(0)
    fresh = build_backbone(BackboneConfig(name="resnet50")).double().body.layer4
    size_last_stage(backbone, backbone.body.state_dict())
    pairs = zip(backbone.body.layer4.modules(), fresh.modules(), strict=True)
    for sized, begun in pairs:
        if isinstance(sized, nn.Conv2d):
            assert sized.weight.norm().item() == pytest.approx(begun.weight.norm().item(), rel=0.01)


def test_earlier_stages_are_left_alone() -> None:
    backbone = trained_a_little("resnet18", last_norm=0.5)
    before = state_of(backbone)
    size_last_stage(backbone, backbone.body.state_dict())
    changed = {
        name.split(".")[0]
        for name, tensor in backbone.body.state_dict().items()
        if not torch.equal(tensor, before[name])
    }
    assert changed == {"layer4"}


@pytest.mark.parametrize("name", ["convnext_tiny", "regnet_y_400mf", "timm:test_resnet"])
def test_networks_that_are_no_resnets_stay_as_they_are(name: str) -> None:
    backbone = build_backbone(BackboneConfig(name=name, last_norm=0.5))
    before = state_of(backbone)
    size_last_stage(backbone, backbone.body.state_dict())
    assert all(torch.equal(before[name], each) for name, each in state_of(backbone).items())


def test_half_the_norm_turns_four_times_as_far_in_a_step_of_sgd() -> None:
    turned = []
    for share in (1.0, 0.5):
        backbone = trained_a_little("resnet18", last_norm=share).train()
        size_last_stage(backbone, backbone.body.state_dict())
        torch.manual_seed(1)
        features = backbone.features(torch.rand(4, 3, 64, 64, dtype=torch.float64))
        (features * torch.randn_like(features)).sum().backward()
        weight = backbone.body.layer4[0].conv1.weight
        turned.append((weight.grad.norm() / weight.norm()).item())
    assert turned[1] / turned[0] == pytest.approx(4, rel=1e-6)


def test_saving_leaves_what_is_still_trained(tmp_path: Path) -> None:
    backbone = trained_a_little("resnet18", last_norm=0.5).float()
    before = state_of(backbone)
    save_backbone(backbone, tmp_path / "backbone.safetensors", {})
    assert all(torch.equal(before[name], each) for name, each in state_of(backbone).items())
    saved = load_backbone(tmp_path / "backbone.safetensors").body
    assert saved.layer4[1].conv2.weight.norm().item() == pytest.approx(16, rel=1e-4)


def test_all_ways_out_of_a_run_have_the_same_weights(tmp_path: Path) -> None:
    """Its file, its last checkpoint, the run without its file, and what is exported from that."""
    network = replace(RESNET18, last_norm=0.5)
    run = tmp_path / "run"
    pretrain(tiny_config(run, backbone=network, steps=1, checkpoints=NO_CHECKPOINTS))
    exported = state_of(load_backbone(run))
    checkpoint = next(run.glob("checkpoints/*.pt"))
    (run / "export" / "backbone.safetensors").unlink()
    again = export_backbone(ExportConfig(source=run, to="torchvision", out=tmp_path / "a.pth"))
    for way in (checkpoint, run, again):
        state = state_of(load_backbone(way))
        for name, tensor in exported.items():
            torch.testing.assert_close(state[name], tensor, rtol=1e-6, atol=1e-8)
    assert exported["layer3.0.conv1.weight"].norm().item() == pytest.approx(8, rel=1e-4)
