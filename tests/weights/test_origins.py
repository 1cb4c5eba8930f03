"""Folders in the style of Hugging Face whose config is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clove_ssl.errors import UserError
from clove_ssl.weights.load import read_backbone


@pytest.mark.parametrize("config", [b"[" * 200_000, b"\xff", b"[]", b'{"architecture": []}', None])
def test_a_config_that_is_none_is_left_alone(tmp_path: Path, config: bytes | None) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"none")
    if config is None:
        os.mkfifo(tmp_path / "config.json")
    else:
        (tmp_path / "config.json").write_bytes(config)
    with pytest.raises(UserError, match="begins like no kind of checkpoint"):
        read_backbone(tmp_path)
