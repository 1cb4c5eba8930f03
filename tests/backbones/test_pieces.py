"""Pieces of a backbone compute what the modules in them do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from clove_ssl.backbones.build import build_backbone
from clove_ssl.backbones.pieces import Chain
from clove_ssl.config.pretraining import BackboneConfig


@pytest.mark.parametrize("sides", [(32, 32), (33, 32), (32, 31)])
def test_a_chain_gives_what_its_modules_give(sides: tuple[int, int]) -> None:
    torch.manual_seed(0)
    modules = [nn.Conv2d(3, 4, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(4), nn.ReLU()]
    images = torch.randn(2, 3, *sides)
    torch.testing.assert_close(Chain(modules)(images), nn.Sequential(*modules)(images))


def test_a_chain_with_a_pooling_gives_what_its_modules_give() -> None:
    torch.manual_seed(0)
    modules = [nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)]
    images = torch.randn(2, 3, 9, 8)
    assert torch.equal(Chain(modules)(images), nn.Sequential(*modules)(images))


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_a_fused_backbone_gives_the_same_maps(name: str) -> None:
    torch.manual_seed(0)
    backbone = build_backbone(BackboneConfig(name=name))
    images = torch.randn(4, 3, 64, 64)
    plain = backbone.features(images)
    backbone.fuse()
    torch.testing.assert_close(backbone.features(images), plain, rtol=1e-3, atol=1e-4)
