"""Where fine-tuning starts from: all tensors of a network, or an error that counts them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from clove_ssl.backbones.build import Backbone, build_backbone
from clove_ssl.config.finetuning import FinetuneConfig, protocol
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.errors import UserError
from clove_ssl.finetuning.starting_point import StartingPoint, open_backbone
from clove_ssl.weights.safetensors_file import save_backbone


def start(backbone: Path | str, **changes: object) -> StartingPoint:
    config: FinetuneConfig = protocol("voc-semantic", Path("RUN"), str(backbone))
    return open_backbone(replace(config, **changes), config.task.build())


@pytest.fixture
def trained() -> Backbone:
    torch.manual_seed(1)
    return build_backbone(BackboneConfig(name="resnet18", stage="c4"))


def test_a_backbone_comes_with_all_its_tensors(trained: Backbone, tmp_path: Path) -> None:
    path = tmp_path / "backbone.safetensors"
    save_backbone(trained, path, {"method": "clove", "config_hash": "0"})
    opened = start(path)
    expected = trained.body.state_dict()
    for name, value in opened.backbone.body.state_dict().items():
        assert torch.equal(value, expected[name]), name
    assert opened.report is not None
    assert opened.report.matched == opened.report.expected == 100
    assert "100 of 100 tensors of resnet18" in opened.describe()
    assert all(parameter.requires_grad for parameter in opened.backbone.parameters())
    assert opened.backbone.stage == "c5"  # the head needs the last map, whatever was pre-trained


def test_a_file_that_lacks_tensors_is_refused_unless_allowed(
    trained: Backbone, tmp_path: Path
) -> None:
    path = tmp_path / "part.pth"
    state = trained.body.state_dict()
    torch.save({name: value for name, value in state.items() if "layer4.1" not in name}, path)
    with pytest.raises(UserError, match=r"90 of 100 tensors fit.*--allow-partial"):
        start(path, architecture="resnet18")
    opened = start(path, architecture="resnet18", allow_partial=True)
    assert "90 of 100 tensors of resnet18" in opened.describe()
    assert torch.equal(opened.backbone.body.state_dict()["conv1.weight"], state["conv1.weight"])


def test_a_file_that_shares_nothing_is_refused_even_then(tmp_path: Path) -> None:
    torch.save({"conv1.weight": torch.zeros(3, 3)}, tmp_path / "other.pth")
    with pytest.raises(UserError):
        start(tmp_path / "other.pth", architecture="resnet18", allow_partial=True)


def test_random_weights_follow_the_seed_and_start_no_block_as_the_identity() -> None:
    first, again = (_seeded(0) for _ in range(2))
    assert torch.equal(first["conv1.weight"], again["conv1.weight"])
    assert not torch.equal(first["conv1.weight"], _seeded(1)["conv1.weight"])
    assert first["layer1.0.bn2.weight"].eq(1).all()


def _seeded(seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return start("random", architecture="resnet18").backbone.body.state_dict()
