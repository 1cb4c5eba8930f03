"""Run directories: refused when taken, locked while in use, found again."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from clove_ssl.errors import UserError
from clove_ssl.runs import directory
from clove_ssl.runs.directory import RunDirectory


def test_a_new_run_makes_its_folders(tmp_path: Path) -> None:
    run = directory.create(tmp_path / "a" / "b")
    assert run.checkpoints.is_dir()
    assert run.backbone.parent.is_dir()


def test_a_folder_that_holds_something_is_refused_with_both_remedies(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("irreplaceable")
    with pytest.raises(UserError, match=r"--out .*-2\.$"):  # no run that could be continued
        directory.create(tmp_path)
    (tmp_path / "config.yaml").touch()
    with pytest.raises(UserError, match=r"--out .*-2.*clove resume.*--overwrite replaces it\.$"):
        directory.create(tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "irreplaceable"


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(UserError, match="is a file"):
        directory.create(tmp_path / "out")


def test_a_folder_that_is_no_run_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no config.yaml"):
        directory.find(tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        directory.find(tmp_path / "nowhere")


def test_a_folder_of_checkpoints_that_may_not_be_listed_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> list[str]:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    assert directory.list_checkpoints(tmp_path / "none") == []
    (tmp_path / "step-000000007-kept.pt").touch()
    assert [each.step for each in directory.list_checkpoints(tmp_path)] == [7]
    monkeypatch.setattr("clove_ssl.runs.directory.os.listdir", refuse)
    with pytest.raises(PermissionError):  # else the run would begin anew
        directory.list_checkpoints(tmp_path)


def test_a_second_process_cannot_use_a_run(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from clove_ssl.runs import directory\n"
        "with directory.locked(directory.RunDirectory(Path(sys.argv[1]))): pass"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with directory.locked(RunDirectory(tmp_path)):
        second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "is in use by a running process (pid" in second.stderr
    assert subprocess.run(command, check=False).returncode == 0
