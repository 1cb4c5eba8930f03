"""Torchvision's own weights, where the machine has them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.error import URLError

import pytest
import torch
from torchvision.models import resnet18

from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.errors import UserError
from clove_ssl.pretraining.run import _start_of
from clove_ssl.weights.load import load_backbone
from clove_ssl.weights.origins import imagenet_file, is_imagenet


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch keeps its files below ``tmp_path``, and reaches nothing."""

    def refuse(*args: object, **options: object) -> None:
        raise URLError("no network")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", refuse)


def test_a_file_that_torch_has_is_taken(tmp_path: Path) -> None:
    kept = tmp_path / "hub" / "checkpoints" / "resnet18-f37072fd.pth"
    kept.parent.mkdir(parents=True)
    network = resnet18()
    torch.save(network.state_dict(), kept)
    assert imagenet_file("resnet18") == kept
    loaded = load_backbone(kept).body.state_dict()
    assert torch.equal(loaded["conv1.weight"], network.conv1.weight)


def test_what_cannot_be_had_says_where_to_put_it() -> None:
    with pytest.raises(UserError, match=r"Put resnet18-f37072fd\.pth of torchvision at"):
        imagenet_file("resnet18")
    with pytest.raises(UserError, match="no ImageNet weights for timm:test_resnet"):
        imagenet_file("timm:test_resnet")


def test_a_file_of_that_name_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_imagenet(Path("imagenet"))
    Path("imagenet").write_text("")
    assert not is_imagenet(Path("imagenet"))


def test_a_run_says_what_it_starts_from(tmp_path: Path) -> None:
    config = PretrainConfig(out=tmp_path)
    given = {None: "", "imagenet": "torchvision's ImageNet weights", "a.pth": "a.pth"}
    for weights, origin in given.items():
        path = None if weights is None else Path(weights)
        backbone = replace(config.backbone, weights=path)
        said = _start_of(replace(config, backbone=backbone), "c5")
        assert said == ("stage c5" if weights is None else f"stage c5, starts from {origin}")
