"""The exported file and its card: complete, verified, loadable elsewhere."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path

import pytest
import torch
import torchvision
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from clove_ssl.backbones.build import Backbone, build_backbone
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.errors import UserError
from clove_ssl.weights.export.model_card import ModelCardFacts, render_model_card, write_model_card
from clove_ssl.weights.safetensors_file import content_hash, read_backbone_file, save_backbone


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return build_backbone(BackboneConfig(name="resnet18", stage="c4"))


FACTS = ModelCardFacts(
    method="clove",
    architecture="resnet18",
    stage="c5",
    output_stride=32,
    data="photos/",
    images=13301,
    images_seen=2_660_200,
    steps=1298,
    config_hash="0123abcd",
    library_version="0.1.0",
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    health={"std": 0.9231, "rank": 41.25},
    probes={"scenes mIoU": 0.4321},
)


def test_the_file_has_torchvisions_names_and_says_what_it_is(
    backbone: Backbone, tmp_path: Path
) -> None:
    path = tmp_path / "new" / "backbone.safetensors"
    save_backbone(backbone, path, {"method": "clove", "config_hash": "0123"})
    state, metadata = read_backbone_file(path)
    network = torchvision.models.resnet18()
    missing, unexpected = network.load_state_dict(state, strict=False)
    assert (missing, unexpected) == (["fc.weight", "fc.bias"], [])
    assert torch.equal(network.layer4[1].conv2.weight, backbone.body.layer4[1].conv2.weight)
    assert metadata["sha256"] == content_hash(state)
    expected = {
        "format": "clove-ssl backbone",
        "format_version": "1",
        "architecture": "resnet18",
        "stage": "c4",
        "output_stride": "32",
        "method": "clove",
        "config_hash": "0123",
    }
    assert {key: metadata[key] for key in expected} == expected
    assert json.loads(metadata["mean"]) == [0.485, 0.456, 0.406]
    assert json.loads(metadata["std"]) == [0.229, 0.224, 0.225]
    assert metadata["library_version"]


def test_floats_are_fp32_and_contiguous_whatever_the_network_uses(tmp_path: Path) -> None:
    half = build_backbone(BackboneConfig(name="resnet18")).to(memory_format=torch.channels_last)
    half = half.half()
    save_backbone(half, tmp_path / "b.safetensors", {})
    state = load_file(tmp_path / "b.safetensors")
    assert {tensor.dtype for tensor in state.values()} == {torch.float32, torch.int64}
    assert torch.equal(state["layer1.0.conv1.weight"], half.body.layer1[0].conv1.weight.float())


def test_own_metadata_cannot_be_overwritten(backbone: Backbone, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="architecture"):
        save_backbone(backbone, tmp_path / "b.safetensors", {"architecture": "resnet50"})
    assert list(tmp_path.iterdir()) == []


def test_the_hash_depends_on_names_values_and_shapes_but_not_on_order() -> None:
    state = {"a": torch.arange(4.0), "b": torch.ones(2, dtype=torch.int64)}
    assert content_hash(dict(reversed(state.items()))) == content_hash(state)
    for change in (
        {"a": torch.arange(4.0) + 1e-6},
        {"a": torch.arange(4.0).view(2, 2)},
        {"b": torch.ones(2, dtype=torch.int32)},
        {"c": torch.zeros(0)},
    ):
        assert content_hash(state | change) != content_hash(state)


def test_changed_tensors_are_noticed(backbone: Backbone, tmp_path: Path) -> None:
    path = tmp_path / "b.safetensors"
    save_backbone(backbone, path, {})
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="SHA-256"):
        read_backbone_file(path)


@pytest.mark.parametrize("size", [0, 5, 100, 5_000_000])
def test_a_truncated_file_is_refused(size: int, backbone: Backbone, tmp_path: Path) -> None:
    path = tmp_path / "b.safetensors"
    save_backbone(backbone, path, {})
    os.truncate(path, size)
    with pytest.raises(UserError, match="cannot be read as safetensors"):
        read_backbone_file(path)


def test_a_file_of_a_later_version_asks_for_an_upgrade(backbone: Backbone, tmp_path: Path) -> None:
    path = tmp_path / "b.safetensors"
    save_backbone(backbone, path, {})
    state, metadata = read_backbone_file(path)
    save_file(state, path, metadata | {"format_version": "2"})
    with pytest.raises(UserError, match="version 2.*pip install --upgrade clove-ssl"):
        read_backbone_file(path)


def test_a_file_of_another_program_is_read_as_it_is(tmp_path: Path) -> None:
    save_file({"x": torch.ones(2)}, tmp_path / "x.safetensors")
    state, metadata = read_backbone_file(tmp_path / "x.safetensors")
    assert (list(state), metadata) == (["x"], {})


def test_a_failed_write_leaves_the_old_file_alone(
    backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "b.safetensors"
    path.write_bytes(b"old")

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(UserError, match="disk is full"):
        save_backbone(backbone, path, {})
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_card_that_cannot_be_finished_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_model_card(tmp_path / "model_card.md", FACTS)
    assert not list(tmp_path.iterdir())


def test_the_card_states_the_facts(tmp_path: Path) -> None:
    write_model_card(tmp_path / "model_card.md", FACTS)
    text = (tmp_path / "model_card.md").read_text()
    for fact in ("clove", "photos/", "13,301", "2,660,200", "0123abcd", "0.9231", "0.4321"):
        assert fact in text
    for heading in ("How to load", "Intended use and limits", "Licence", "Probes", "Health"):
        assert f"## {heading}" in text


def test_a_card_without_probes_has_no_empty_section() -> None:
    text = render_model_card(
        ModelCardFacts(**{**vars(FACTS), "probes": {}, "warnings": ("low rank",)})
    )
    assert "Probes" not in text
    assert "- low rank" in text
    assert "\n\n\n" not in text


def snippets(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def test_the_code_on_the_card_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = build_backbone(BackboneConfig(name="resnet18"))
    save_backbone(original, tmp_path / "backbone.safetensors", {})
    monkeypatch.chdir(tmp_path)
    own, elsewhere = snippets(render_model_card(FACTS))
    names: dict[str, object] = {"images": torch.zeros(1, 3, 64, 64)}
    exec(own, names)
    assert set(names["maps"]) == {"c2", "c3", "c4", "c5"}  # type: ignore[call-overload]
    exec(elsewhere, names)
    assert torch.equal(names["network"].conv1.weight, original.body.conv1.weight)  # type: ignore[attr-defined]


def test_the_code_on_a_timm_card_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("timm")
    original = build_backbone(BackboneConfig(name="timm:convnext_atto"))
    save_backbone(original, tmp_path / "backbone.safetensors", {})
    monkeypatch.chdir(tmp_path)
    facts = ModelCardFacts(**{**vars(FACTS), "architecture": "timm:convnext_atto"})
    names: dict[str, object] = {}
    exec(snippets(render_model_card(facts))[1], names)
    assert torch.equal(
        names["network"].stem_0.weight,  # type: ignore[attr-defined]
        original.body.stem_0.weight,
    )


def test_safetensors_metadata_is_readable_without_this_library(
    backbone: Backbone, tmp_path: Path
) -> None:
    save_backbone(backbone, tmp_path / "b.safetensors", {"method": "clove"})
    with safe_open(tmp_path / "b.safetensors", framework="np") as file:
        assert file.metadata()["method"] == "clove"
