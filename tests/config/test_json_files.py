"""JSON files of a run: the remedy fits what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from clove_ssl.config.json_files import read_json
from clove_ssl.errors import UserError


def test_a_damaged_file_and_one_that_may_not_be_read_have_different_remedies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> str:
        raise PermissionError

    path = tmp_path / "scores.json"
    path.write_text('{"a": "b"}')
    with pytest.raises(UserError, match=r"scores\.json is damaged.* Score it again"):
        read_json(path, dict[str, float], remedy="Score it again")
    monkeypatch.setattr("clove_ssl.config.json_files._text", refuse)
    with pytest.raises(UserError, match=r"you may not\. .*chmod u\+rw .*scores\.json$"):
        read_json(path, dict[str, float], remedy="Score it again")
