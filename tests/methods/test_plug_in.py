"""A method from another package: installed like any, known by its name, trained from the shell."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "dense-twin"
SMALL = [
    *("--backbone.name", "resnet18", "--backbone.stage", "c4", "--method.views.global-size", "64"),
    *("--data.scenes-count", "12", "--data.scenes-size", "64", "--data.workers", "0"),
    *("--steps", "3", "--batch-size", "4", "--device", "cpu", "--optimizer.warmup-epochs", "0"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the example, without a network."""
    pytest.importorskip("pip")
    folder = tmp_path_factory.mktemp("site")
    # Building writes beside the sources, so a copy is built.
    copy = shutil.copytree(EXAMPLE, tmp_path_factory.mktemp("source") / "dense-twin")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    pip = [sys.executable, "-m", "pip", "install", *options, "--target", str(folder), str(copy)]
    subprocess.run(pip, check=True, capture_output=True)
    return folder


def clove(site: Path, *arguments: str) -> str:
    """What the command says, with the example on the path of its process."""
    paths = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    done = subprocess.run(
        [sys.executable, "-m", "clove_ssl", *arguments],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_installed_method_is_listed(site: Path) -> None:
    (line,) = [line for line in clove(site, "list", "methods").splitlines() if "twin" in line]
    assert line.startswith("dense-twin ")
    assert line.endswith("plug-in")


def test_an_installed_method_trains_from_the_command_line(site: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = ["--config", str(EXAMPLE / "twin.yaml")]
    said = clove(site, "pretrain", *config, "--out", str(run), *SMALL)
    assert "Pre-training with dense-twin" in said
    assert "step 3/3" in said
    assert "channels: 64\n" in (run / "config.yaml").read_text()
    assert (run / "export" / "backbone.safetensors").is_file()


def test_an_installed_method_explains_its_own_metrics(site: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = ["--config", str(EXAMPLE / "twin.yaml")]
    clove(site, "pretrain", *config, "--out", str(run), *SMALL)
    assert "of the cells take part." in clove(site, "doctor", str(run))
    page = (run / "report.html").read_text()
    assert "Cells with a match" in page
    assert "Other metrics" not in page
    assert clove(site, "show", "matches", str(run)).strip().endswith("matches.png")


def test_without_the_package_its_name_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="Unknown method 'dense-twin'"):
        clove(tmp_path, "pretrain", "--config", str(EXAMPLE / "twin.yaml"), "--out", "run")


@pytest.mark.parametrize(("number", "name"), [(0, "config"), (1, "method")])
def test_the_package_is_the_example_of_the_architecture(number: int, name: str) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    shown = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[number]
    _, _, code = (EXAMPLE / "src/dense_twin" / f"{name}.py").read_text().split('"""', 2)
    # Sorted, because the order of imports depends on whose package it is.
    expected = sorted(shown.split("\n"))
    assert [line for line in sorted(code.split("\n")) if line] == [
        line for line in expected if line
    ]
