"""What the surroundings of a file tell: odd configs of folders, and runs around checkpoints."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clove_ssl.config import files
from clove_ssl.config.finetuning import protocol
from clove_ssl.errors import UserError
from clove_ssl.runs import directory
from clove_ssl.weights.load import read_backbone
from clove_ssl.weights.origins import Origin, locate


@pytest.mark.parametrize("config", [b"[" * 200_000, b"\xff", b"[]", b'{"architecture": []}', None])
def test_a_config_that_is_none_is_left_alone(tmp_path: Path, config: bytes | None) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"none")
    if config is None:
        os.mkfifo(tmp_path / "config.json")
    else:
        (tmp_path / "config.json").write_bytes(config)
    with pytest.raises(UserError, match="begins like no kind of checkpoint"):
        read_backbone(tmp_path)


def test_a_checkpoint_of_a_finetuning_run_names_the_run(tmp_path: Path) -> None:
    run = directory.create(tmp_path / "run")
    files.save(protocol("coco-fpn", run.path, "random"), run.config)
    checkpoint = run.checkpoints / "step-000000002.pt"
    checkpoint.write_bytes(b"content")
    with pytest.raises(UserError, match=f"of a fine-tuning run.*Give the run: {run.path}"):
        read_backbone(checkpoint)


@pytest.mark.parametrize("config", ["MODEL: {DEPTH: 50}\n", "task: pretraining\n"])
def test_a_checkpoint_beside_the_config_of_another_program_is_a_mere_file(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (tmp_path / "config.yaml").write_text(config)
    for name in ("epoch_100.pth", "step-000000002.pt"):
        (folder / name).touch()
    monkeypatch.chdir(folder)
    for path in (Path("epoch_100.pth"), folder / "epoch_100.pth"):
        assert locate(path) == Origin(path)
    with pytest.raises(UserError, match="config.yaml is not a valid"):
        locate(folder / "step-000000002.pt")  # which only a run writes, so its config is damaged
