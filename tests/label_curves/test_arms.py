"""Backbones that are compared: names for folders, and one network for all."""

from __future__ import annotations

from pathlib import Path

import pytest

from clove_ssl.backbones.build import build_backbone
from clove_ssl.config.finetuning import protocol
from clove_ssl.config.label_curves import LabelsConfig
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.errors import UserError
from clove_ssl.label_curves.arms import arm_names, open_arms, reference
from clove_ssl.weights.safetensors_file import save_backbone


def test_names_are_short_and_tell_backbones_apart(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "resnet 18.pth").touch()
    given = ["random", "random:resnet18", str(tmp_path / "photos"), str(tmp_path / "resnet 18.pth")]
    given += ["runs/photos/export/backbone.safetensors", "runs/photos-2", "other/photos"]
    names = arm_names(given)
    assert names[:4] == ["random", "random-2", "photos", "resnet-18"]
    assert names[4:] == ["photos-2", "photos-2-2", "photos-3"]


def written(path: Path, architecture: str = "timm:test_resnet") -> str:
    backbone = build_backbone(BackboneConfig(name=architecture, zero_init_last=False))
    save_backbone(backbone, path, {"method": "clove", "config_hash": "0"})
    return str(path)


def comparison(*backbones: str) -> LabelsConfig:
    return LabelsConfig(finetuning=protocol("detect", Path("OUT"), "random"), backbones=backbones)


def test_random_weights_are_of_the_network_that_the_others_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "mine.safetensors")
    monkeypatch.chdir(tmp_path)
    arms = open_arms(comparison("mine.safetensors", "random"))
    assert [arm.name for arm in arms] == ["mine", "random"]
    assert [arm.architecture for arm in arms] == [None, "timm:test_resnet"]
    assert arms[0].backbone == str(tmp_path / "mine.safetensors")
    assert reference(arms).name == "random"
    assert reference(arms[:1]).name == "mine"


def test_backbones_of_two_networks_are_refused(tmp_path: Path) -> None:
    mine = written(tmp_path / "mine.safetensors")
    with pytest.raises(UserError, match="mine is a timm:test_resnet, random is a resnet18"):
        open_arms(comparison("random:resnet18", mine))
    with pytest.raises(UserError, match="nowhere"):
        open_arms(comparison(mine, str(tmp_path / "nowhere")))
    with pytest.raises(UserError, match="resnet19"):
        open_arms(comparison("random:resnet19"))
