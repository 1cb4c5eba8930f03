"""Folders, lists and outputs whose own names are not valid UTF-8, and users without a home."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders.runs.tiny_runs import NO_CHECKPOINTS, tiny_config
from PIL import Image

from clove_ssl import cli
from clove_ssl.atomic import write_text
from clove_ssl.config import files
from clove_ssl.config.showing import WatchConfig
from clove_ssl.report import page
from clove_ssl.report.watch import news, open_server
from clove_ssl.runs.directory import RunDirectory


def odd(folder: Path, name: bytes) -> Path:
    """A place whose name ends with a byte that is no text."""
    return folder / os.fsdecode(name + b"\xe9")


def test_every_verb_works_below_a_folder_whose_name_is_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HOME")
    photos, out = odd(tmp_path, b"photos"), odd(tmp_path, b"run")
    photos.mkdir()
    for number in range(4):
        picture = Image.fromarray(np.full((64, 64, 3), 40 * number, np.uint8))
        picture.save(odd(photos, b"a%d" % number).with_suffix(".jpg"))
    names = b"\n".join(os.fsencode(path) for path in sorted(photos.iterdir()))
    odd(tmp_path, b"list").write_bytes(names)
    config = tiny_config(out, steps=1, batch_size=2, checkpoints=NO_CHECKPOINTS)
    source = str(odd(tmp_path, b"list").rename(odd(tmp_path, b"list").with_suffix(".txt")))
    config = replace(config, data=replace(config.data, source=source))
    files.save(config, odd(tmp_path, b"config"))
    run, exported = str(out), str(odd(tmp_path, b"export").with_suffix(".safetensors"))
    for command in (
        ["pretrain", "--config", str(odd(tmp_path, b"config")), "--out", run],
        ["report", run, "--no-pictures"],
        ["export", run, "--to", "safetensors", "--out", exported],
        ["import", exported, "--out", str(odd(tmp_path, b"again").with_suffix(".safetensors"))],
    ):
        assert cli.main(command) == 0, capsys.readouterr().err
    open_server(WatchConfig(runs=(out,), port=0)).server_close()
    assert json.dumps(news([RunDirectory(out)], "")).encode()
    assert r"list\xe9.txt" in RunDirectory(out).model_card.read_text(encoding="utf-8")


def test_a_text_with_an_odd_name_is_written_with_its_bytes_shown(tmp_path: Path) -> None:
    write_text(tmp_path / "a.md", os.fsdecode(b"caf\xe9"))
    assert (tmp_path / "a.md").read_text(encoding="utf-8") == r"caf\xe9"


def test_a_report_needs_no_file_of_the_installation_once_it_is_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page.get_ready()
    loader = page._environment().loader
    assert loader is not None

    def gone(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(loader, "get_source", gone)
    monkeypatch.setattr(page._environment(), "auto_reload", False)
    for name in ("report.html.jinja", "study.html.jinja"):
        assert page.template(name).name == name
