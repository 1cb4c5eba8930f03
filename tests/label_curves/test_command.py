"""``clove labels`` from own files to curves: continued, extended, with runs that fail."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders.runs.tiny_finetuning import SIDE, tiny_finetuning

from clove_ssl import cli, label_curve
from clove_ssl.config.finetuning import EvaluationConfig, LabelledDataConfig
from clove_ssl.config.label_curves import LabelsConfig
from clove_ssl.errors import UserError
from clove_ssl.label_curves import command
from clove_ssl.label_curves.command import compare_labels
from clove_ssl.label_curves.plan import part_sizes
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.tasks.detection.scenes import write_coco_scenes

SMALL = "random:timm:test_resnet"


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("scenes")
    write_coco_scenes(root, "train", count=4, size=SIDE)
    write_coco_scenes(root, "test", count=2, size=SIDE)
    return root


def comparison(out: Path, root: Path, **changes: Any) -> LabelsConfig:
    shared = replace(
        tiny_finetuning("segment", out, iterations=1),
        evaluation=EvaluationConfig(precise_norm_batches=1, pictures=0, best=True),
        data=LabelledDataConfig(root=root, workers=0),
        architecture=None,
    )
    usual = {
        "backbones": ("random:timm:test_resnet", "random:timm:test_resnet"),
        "fractions": (100.0, 50.0),
    }
    return LabelsConfig(finetuning=shared, **{**usual, **changes})


def found(out: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / "labels.json").read_text())
    return content


def times(out: Path) -> dict[Path, int]:
    return {path: os.stat(path).st_mtime_ns for path in sorted(out.glob("*/*/scores.json"))}


def stopped_after(cells: int, config: LabelsConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a comparison until some cells are done, then stop it as Ctrl-C does."""
    real, done = command.start_or_resume, list[str]()

    def stopping(*args: Any) -> None:
        if len(done) == cells:
            raise KeyboardInterrupt
        real(*args)
        done.append("one more")

    with monkeypatch.context() as patch:
        patch.setattr(command, "start_or_resume", stopping)
        with pytest.raises(KeyboardInterrupt):
            compare_labels(config)


def test_a_comparison_goes_on_where_it_was_stopped(
    tmp_path: Path,
    scenes: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    config = comparison(out, scenes)
    stopped_after(2, config, monkeypatch)
    assert "The same command continues" in capsys.readouterr().out
    before, half = times(out), found(out)
    assert [cell["done"] for cell in half["cells"]] == [True, True, False, False]
    blocked = out / "fraction-100" / "random-s0"
    blocked.parent.mkdir(exist_ok=True)
    blocked.touch()
    with pytest.raises(UserError, match="1 of 4 runs failed.*\n  fraction-100/random-s0: "):
        compare_labels(config)
    assert [cell["done"] for cell in found(out)["cells"]] == [True, True, False, True]
    assert "fraction-100/random-s0" in (out / "labels.html").read_text()
    blocked.unlink()
    curve = compare_labels(config)
    assert {path: at for path, at in times(out).items() if path in before} == before
    assert [point.images for point in curve.lines[0].points] == [2, 4]
    # The same weights, seed, images and schedule can only give the same scores.
    assert curve.lines[0].points == curve.lines[1].points
    assert (out / "labels.svg").is_file()
    assert "| 50 % | 2 | 1 |" in (out / "labels.md").read_text()
    cell = RunDirectory(out / "fraction-50/random-2-s0")
    assert "2 images" in json.loads(cell.self_check.read_text())["facts"]["training"]
    again = ["finetune", "--config", str(cell.config), "--out", str(tmp_path / "again")]
    assert cli.main(again) == 0
    assert (tmp_path / "again/scores.json").read_bytes() == cell.scores.read_bytes()


def test_other_options_do_not_mix_with_what_is_there(tmp_path: Path, scenes: Path) -> None:
    out = tmp_path / "out"
    config = comparison(out, scenes, backbones=(SMALL,), fractions=(50.0,))
    first = label_curve(
        "segment",
        [SMALL],
        data=scenes,
        out=out,
        fractions=(50,),
        iterations=1,
        batch_size=2,
        device="cpu",
        task_options={"crop": SIDE, "head_width": 16, "head_dilation": 1},
        evaluation={"precise_norm_batches": 1, "pictures": 0},
        logging={"every": 1},
        data_options={"workers": 0},
    )
    assert first == compare_labels(config), "by Python or by a config, it is the same work"
    other = replace(config, finetuning=replace(config.finetuning, lr=0.5))
    with pytest.raises(UserError, match="other values of lr.*may grow"):
        compare_labels(other)
    with pytest.raises(UserError, match=r"Unknown score .--score. 'box_AP'.*pixels_mIoU"):
        compare_labels(replace(config, score="box_AP"))
    grown = replace(config, finetuning=replace(config.finetuning, runs=2))
    before = times(out)
    curve = compare_labels(grown)
    assert len(curve.lines[0].points[0].values) == 2
    assert len(times(out)) == 2
    assert before.items() <= times(out).items()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/a.jpg").touch()
    with pytest.raises(UserError, match="holds no comparison"):
        compare_labels(comparison(tmp_path / "photos", scenes))


def test_a_dry_run_tells_and_writes_nothing(
    tmp_path: Path, scenes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compare_labels(comparison(tmp_path / "out", scenes, dry_run=True))
    said = capsys.readouterr().out
    assert "4 runs to do, about" in said
    assert "the same 2 images" in said
    assert not (tmp_path / "out").exists()


def test_parts_without_images_and_equal_parts_are_refused() -> None:
    assert part_sizes((100.0, 10.0), 41) == {10.0: 4, 100.0: 41}
    with pytest.raises(UserError, match=r"1 % of 41 training images is less than one.*Give 2\.4"):
        part_sizes((1.0, 100.0), 41)
    with pytest.raises(UserError, match="--fractions 5 6: of 41 training images each is 2 images"):
        part_sizes((5.0, 6.0), 41)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "needs a task: detect, instances"),
        ("voc-c4 --backbones random", "voc-c4 has a published protocol"),
        ("detect --backbones random --fractions 0 5", "--fractions is 0 5; expected numbers above"),
        ("detect --backbones random --fractions 5 101", "up to 100"),
        ("detect --backbones random --fractions 5 5", "each once"),
        ("detect --backbones", "--backbones names none"),
        ("detect --backbones random --backbone runs/a", "instead of --backbone"),
        ("detect --backbones random:resnet18", "No data was named"),
        ("detect --backbones random --data a --data b", "--data is given 2 times"),
    ],
)
def test_mistakes_are_told_before_anything_is_run(
    words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "out"), "--device", "cpu"]
    assert cli.main(["labels", *words.split(), *out]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_several_processes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="without torchrun"):
        compare_labels(comparison(tmp_path / "out", tmp_path))
