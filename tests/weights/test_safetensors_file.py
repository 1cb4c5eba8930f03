"""Files that depend on their content alone."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from clove_ssl.errors import UserError
from clove_ssl.weights.safetensors_file import read_backbone_file, to_bytes


def test_the_same_content_gives_the_same_bytes() -> None:
    state = {"b": torch.arange(3.0), "a": torch.ones(2, 2, dtype=torch.float16)}
    metadata = {f"key {n}": "ü\n" * n for n in range(8)}
    files = {to_bytes(state, metadata) for _ in range(8)}
    files |= {to_bytes(state, dict(reversed(metadata.items())))}
    (only,) = files
    found = load(only)
    assert all(torch.equal(found[name], state[name]) for name in state)
    assert int.from_bytes(only[:8], "little") % 8 == 0


def test_a_file_that_may_not_be_opened_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, mode: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    path = tmp_path / "model.safetensors"
    with pytest.raises(UserError, match=r"\(No such file or directory\)"):
        read_backbone_file(path)
    path.write_bytes(to_bytes({"a": torch.ones(2)}, {}))
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UserError, match=r"\(Permission denied\)"):
        read_backbone_file(path)
