"""Backbones: uniform stages, untouched names, and nothing trained that is not used."""

from __future__ import annotations

import copy
import math
import sys

import pytest
import torch
import torchvision
from torch import nn

from clove_ssl.backbones.build import STAGES, backbone_names, build_backbone
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.errors import UserError

ONE_OF_EACH_FAMILY = ["resnet18", "resnet50", "resnext50_32x4d", "convnext_tiny", "regnet_y_400mf"]
STRIDES = {"c2": 4, "c3": 8, "c4": 16, "c5": 32}


@pytest.mark.parametrize("name", [*ONE_OF_EACH_FAMILY, "timm:resnet18", "timm:convnext_atto"])
def test_every_family_has_the_same_stages_and_uses_all_parameters(name: str) -> None:
    if name.startswith("timm:"):
        pytest.importorskip("timm")
    backbone = build_backbone(BackboneConfig(name=name))
    maps = backbone(torch.randn(2, 3, 64, 96))
    assert tuple(maps) == STAGES
    assert backbone.strides == STRIDES
    for stage, stride in STRIDES.items():
        assert maps[stage].shape == (2, backbone.channels[stage], 64 // stride, 96 // stride)
    sum(feature_map.mean() for feature_map in maps.values()).backward()
    assert [key for key, value in backbone.named_parameters() if value.grad is None] == []


@pytest.mark.parametrize("name", ONE_OF_EACH_FAMILY)
def test_names_are_torchvisions_without_the_classifier(name: str) -> None:
    reference = torchvision.models.get_model(name).state_dict()
    kept = [key for key in reference if not key.startswith(("fc.", "classifier."))]
    body = build_backbone(BackboneConfig(name=name)).body.state_dict()
    assert list(body) == kept
    assert all(body[key].shape == reference[key].shape for key in kept)


def test_maps_are_those_of_the_torchvision_network() -> None:
    backbone = build_backbone(BackboneConfig(name="resnet18", zero_init_last=False)).eval()
    network = torchvision.models.resnet18().eval()
    network.load_state_dict(
        backbone.body.state_dict() | {"fc.weight": network.fc.weight, "fc.bias": network.fc.bias}
    )
    images = torch.randn(1, 3, 64, 64)
    pooled = backbone(images)["c5"].mean((2, 3))
    torch.testing.assert_close(network.fc(pooled), network(images))


def test_features_stop_at_the_chosen_stage() -> None:
    backbone = build_backbone(BackboneConfig(name="resnet18", stage="c3"))
    del backbone.body.layer3, backbone.body.layer4
    features = backbone.features(torch.randn(1, 3, 64, 64))
    assert features.shape == (1, 128, 8, 8)
    assert (backbone.stage, backbone.out_channels) == ("c3", 128)


def test_stages_after_the_chosen_one_are_frozen_and_the_others_all_train() -> None:
    backbone = build_backbone(BackboneConfig(name="regnet_y_400mf", stage="c4"))
    backbone.features(torch.randn(2, 3, 64, 64)).mean().backward()
    for name, parameter in backbone.named_parameters():
        assert parameter.requires_grad == (parameter.grad is not None) == ("block4" not in name)


def test_a_timm_network_is_cut_after_the_chosen_stage() -> None:
    pytest.importorskip("timm")
    backbone = build_backbone(BackboneConfig(name="timm:resnet18", stage="c3"))
    features = backbone.features(torch.randn(2, 3, 64, 64))
    features.mean().backward()
    assert features.shape == (2, 128, 8, 8)
    assert all(parameter.grad is not None for parameter in backbone.parameters())


def test_building_leaves_batch_norm_and_train_mode_as_they_were() -> None:
    backbone = build_backbone(BackboneConfig(name="resnet18"))
    assert all(module.training for module in backbone.modules())
    assert backbone.body.bn1.num_batches_tracked == 0
    assert torch.equal(backbone.body.bn1.running_var, torch.ones(64))


@pytest.mark.parametrize("zero", [True, False])
def test_residual_blocks_start_as_asked(zero: bool) -> None:
    body = build_backbone(BackboneConfig(name="resnet50", zero_init_last=zero)).body
    assert all(bool((block.bn3.weight == 0).all()) == zero for block in body.layer2)
    assert all((block.bn2.weight == 1).all() for block in body.layer2)


def test_convolutions_start_with_the_fan_out_deviation() -> None:
    torch.manual_seed(0)
    body = build_backbone(BackboneConfig(name="resnet50")).body
    weight = body.layer3[0].conv2.weight  # 3 x 3, 256 filters
    assert weight.std().item() == pytest.approx(math.sqrt(2 / (9 * 256)), rel=0.01)


def test_output_stride_16_dilates_the_last_stage_without_new_names() -> None:
    dilated = build_backbone(BackboneConfig(name="resnet50", output_stride=16))
    plain = build_backbone(BackboneConfig(name="resnet50"))
    assert dilated.strides == STRIDES | {"c5": 16}
    assert (dilated.output_stride, plain.output_stride) == (16, 32)
    assert dilated.body.layer4[1].conv2.dilation == (2, 2)
    assert list(dilated.state_dict()) == list(plain.state_dict())


@pytest.mark.parametrize("name", ["resnet18", "convnext_tiny", "regnet_x_400mf", "timm:resnet50"])
def test_networks_that_cannot_be_dilated_say_so(name: str) -> None:
    with pytest.raises(UserError, match=r"output_stride is 16.*--backbone.name resnet50"):
        build_backbone(BackboneConfig(name=name, output_stride=16))


def test_random_depth_is_off_because_teachers_run_in_train_mode() -> None:
    backbone = build_backbone(BackboneConfig(name="convnext_tiny")).train()
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(backbone.features(images), backbone.features(images))


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(UserError, match="'resnet55'.*Did you mean 'resnet50'"):
        build_backbone(BackboneConfig(name="resnet55"))


def test_an_unknown_timm_name_gets_a_suggestion() -> None:
    pytest.importorskip("timm")
    with pytest.raises(UserError, match="'resnet51e'.*resnet51q"):
        build_backbone(BackboneConfig(name="timm:resnet51e"))


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "swin_tiny_patch4_window7_224"])
def test_a_timm_network_without_a_pyramid_of_maps_is_refused(name: str) -> None:
    pytest.importorskip("timm")
    with pytest.raises(UserError, match="no feature maps.*strides 4, 8, 16, 32"):
        build_backbone(BackboneConfig(name=f"timm:{name}"))


def test_timm_that_is_not_installed_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UserError, match=r'pip install "clove-ssl\[timm\]"'):
        build_backbone(BackboneConfig(name="timm:resnet18"))


def test_names_cover_the_families() -> None:
    names = backbone_names()
    assert {"resnet50", "resnext101_64x4d", "wide_resnet50_2", "convnext_large"} <= set(names)
    assert sum(name.startswith("regnet_") for name in names) == 15
    assert names == sorted(names)
    assert not [name for name in names if "fasterrcnn" in name or "deeplab" in name]


def test_a_copy_is_independent_and_equal() -> None:
    backbone = build_backbone(BackboneConfig(name="resnet18", stage="c3")).eval()
    twin = copy.deepcopy(backbone)
    images = torch.randn(1, 3, 32, 32)
    assert torch.equal(twin.features(images), backbone.features(images))
    nn.init.zeros_(twin.body.conv1.weight)
    assert not torch.equal(twin.features(images), backbone.features(images))


@pytest.mark.parametrize("name", ["resnet18", "regnet_y_400mf"])
def test_channels_last_stays_channels_last(name: str) -> None:
    backbone = build_backbone(BackboneConfig(name=name)).to(memory_format=torch.channels_last)
    images = torch.randn(2, 3, 64, 64).contiguous(memory_format=torch.channels_last)
    assert backbone.features(images).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", ["resnet18", "regnet_y_400mf"])
def test_it_traces_into_one_graph(name: str) -> None:
    backbone = build_backbone(BackboneConfig(name=name, stage="c4")).eval()
    compiled = torch.compile(backbone.features, fullgraph=True, backend="eager")
    images = torch.randn(1, 3, 32, 32)
    torch.testing.assert_close(compiled(images), backbone.features(images))


@pytest.mark.parametrize("name", ["resnet18", "regnet_y_400mf", "timm:resnet14t"])
def test_a_larger_stem_has_the_same_maps(name: str) -> None:
    images = torch.rand(4, 3, 64, 64, dtype=torch.float64)
    maps = []
    for factor in (1.0, 4.0):
        torch.manual_seed(0)
        backbone = build_backbone(BackboneConfig(name=name, stem_scale=factor)).double()
        norms = (each for each in backbone.modules() if isinstance(each, torch.nn.BatchNorm2d))
        for norm in norms:
            norm.eps = 1e-12  # or the factor would not cancel, by some millionths
        maps.append(backbone.features(images))
    torch.testing.assert_close(*maps, rtol=1e-6, atol=1e-6)


def test_a_larger_stem_turns_less_in_a_step_of_sgd() -> None:
    turned = []
    for factor in (1.0, 4.0):
        torch.manual_seed(0)
        backbone = build_backbone(BackboneConfig(name="resnet18", stem_scale=factor))
        torch.manual_seed(1)
        features = backbone.features(torch.rand(4, 3, 64, 64))
        (features * torch.randn_like(features)).sum().backward()
        weight = backbone.body.conv1.weight
        turned.append((weight.grad.norm() / weight.norm()).item())
    assert turned[0] / turned[1] == pytest.approx(16, rel=0.01)


def test_a_stem_without_a_norm_stays_as_it_is() -> None:
    stems = []
    for factor in (1.0, 4.0):
        torch.manual_seed(0)
        backbone = build_backbone(BackboneConfig(name="convnext_tiny", stem_scale=factor))
        stems.append(next(backbone.parameters()))
    assert torch.equal(*stems)
