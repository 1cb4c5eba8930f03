"""The verbs as Python functions."""

from __future__ import annotations

import importlib
import io
from pathlib import Path
from typing import Any

import pytest
from builders.runs.tiny_runs import tiny_config
from PIL import Image

import clove_ssl
from clove_ssl.errors import UserError
from clove_ssl.finetuning.finetuned import as_pixels
from clove_ssl.pretraining import run as pretraining


def test_report_is_a_function_before_and_after_its_room_is_imported() -> None:
    with pytest.raises(UserError, match="needs a run"):
        clove_ssl.report()
    importlib.import_module("clove_ssl.report.command")
    with pytest.raises(UserError, match="needs a run"):
        clove_ssl.report()


def test_verbs_give_what_they_have_made(tmp_path: Path) -> None:
    run = pretraining.pretrain(tiny_config(tmp_path / "run", steps=1)).run
    scores = clove_ssl.probe(run, data="scenes", probe=("spread",), size=64, test_images=4)
    assert "effective_rank" in scores[str(run)]
    assert clove_ssl.show("views", run, count=1) == run / "pictures" / "views.png"
    assert clove_ssl.report(run, pictures=False) == run / "report.html"
    assert clove_ssl.export(run, to="safetensors", out=tmp_path / "b.safetensors").is_file()


def test_a_run_from_python_ends_like_one_of_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    result = clove_ssl.pretrain(tiny_config(tmp_path / "run", steps=1))
    assert "Measuring and drawing what was learned" in capsys.readouterr().out
    assert {path.stem for path in (result.run / "pictures").iterdir()} >= {"features", "matches"}
    assert (result.run / "report.html").read_text().count('src="data:image/') == 3
    clove_ssl.resume(result.run)  # which has nothing to do
    assert "Measuring" not in capsys.readouterr().out
    request.getfixturevalue("unmeasured")  # once is enough; it says so before
    clove_ssl.resume(result.run, steps=2)
    assert "Measuring and drawing what was learned" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [
        {"data": 5},
        {"data": ()},
        {"data": ["photos", None]},
        {"minutes": float("inf")},
        {"minutes": "1"},
        {"minutes": -1},
    ],
)
def test_values_that_say_nothing_are_refused_by_their_name(
    options: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=f"{next(iter(options))} is .*Give"):
        clove_ssl.pretrain(**{"data": tmp_path, "out": tmp_path / "run", **options})
    assert not (tmp_path / "run").exists()


def test_other_options_beside_a_config_are_refused(tmp_path: Path) -> None:
    for options in ({"minutes": 0}, {"out": tmp_path}, {"epochs": 3}):
        with pytest.raises(UserError, match="a config and other options besides"):
            clove_ssl.pretrain(tiny_config(tmp_path / "run", steps=1), **options)
    assert not (tmp_path / "run").exists()


def test_formats_configs_and_devices_that_are_none_are_told(tmp_path: Path) -> None:
    for name in ("banana", None):
        with pytest.raises(UserError, match="Unknown format.*Known: .*onnx"):
            clove_ssl.export(tmp_path, name)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="takes a FinetuneConfig, not a NoneType"):
        clove_ssl.finetune(None)  # type: ignore[arg-type]
    for device in ("banana", "cuda:99"):
        with pytest.raises(UserError, match=r"no device|torch sees \d+ GPUs?\b"):
            clove_ssl.load_finetuned(tmp_path, device=device)


def test_pictures_that_hold_no_pixels_are_told() -> None:
    whole = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(whole, format="PNG")
    closed = Image.new("RGB", (4, 4))
    closed.close()
    damaged = Image.open(io.BytesIO(whole.getvalue()[:80]))
    for picture in (closed, damaged, Image.new("La", (4, 4)), Image.new("RGB", (0, 4))):
        with pytest.raises(UserError, match=r"cannot be used|shows nothing"):
            as_pixels(picture)
