"""Names that are not valid UTF-8, as old disks have them, are shown escaped everywhere."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders.runs.tiny_runs import tiny_config
from PIL import Image

from clove_ssl.config import files
from clove_ssl.config.pretraining import DataConfig
from clove_ssl.console import Console
from clove_ssl.errors import escaped

BAD = b"caf\xe9 \x1b[2J.jpg"
SHOWN = r"caf\xe9 \x1b[2J.jpg"


def jpeg(seed: int) -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 255, (64, 64, 3), np.uint8)
    Image.fromarray(pixels).save(buffer, "jpeg")
    return buffer.getvalue()


def make_folder(root: Path) -> str:
    root.mkdir()
    for number in range(20):
        (root / f"{number}.jpg").write_bytes(jpeg(number))
    with open(os.path.join(os.fsencode(root), BAD), "wb") as file:
        file.write(b"no image")
    return str(root)


def make_list(root: Path) -> str:
    folder = make_folder(root)
    names = sorted(os.listdir(os.fsencode(folder)))
    (root / "list.txt").write_bytes(b"\n".join(names) + b"\n")
    return str(root / "list.txt")


def make_tar(root: Path) -> str:
    folder = make_folder(root)
    with tarfile.open(root / "a.tar", "w") as tar:
        for name in sorted(os.listdir(folder)):
            if name.endswith(".jpg"):
                tar.add(os.path.join(folder, name), arcname=name)
    return str(root / "a.tar")


@pytest.mark.parametrize("make", [make_folder, make_list, make_tar])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_bad_file_with_an_odd_name_does_not_stop_a_run(
    make, encoding: str, tmp_path: Path
) -> None:
    config = tiny_config(tmp_path / "run", data=DataConfig(source=make(tmp_path / "a"), workers=0))
    files.save(replace(config, out=tmp_path / "unused"), tmp_path / "config.yaml")
    command = [sys.executable, "-m", "clove_ssl", "pretrain", "--config", "config.yaml"]
    done = subprocess.run(
        [*command, "--out", "run"],
        cwd=tmp_path,
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": f"{encoding}:strict"},
    )
    assert done.returncode == 0, done.stderr.decode()
    assert SHOWN in done.stdout.decode()
    assert SHOWN in (tmp_path / "run" / "log.txt").read_text(encoding="utf-8")
    assert (tmp_path / "run" / "report.html").is_file()


def test_text_is_escaped_only_where_it_cannot_be_shown() -> None:
    plain = "Größe 3 × 4, 日本語 🌿\n\tnext\u00a0line"
    assert escaped(plain) == plain
    assert escaped(os.fsdecode(BAD)) == SHOWN
    assert escaped("half \ud83c of it") == r"half \ud83c of it"
    assert escaped("a\rb\x7f\x9b\u202e") == r"a\rb\x7f\x9b\u202e"


def test_the_log_takes_any_name(tmp_path: Path) -> None:
    with Console(log=tmp_path / "log.txt") as console:
        for speak in (console.say, console.warn, console.progress):
            speak(os.fsdecode(BAD))
    assert (tmp_path / "log.txt").read_text(encoding="utf-8").count(SHOWN) == 3
