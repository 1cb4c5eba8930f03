"""The HTML report of a run and its curves."""

from __future__ import annotations

import base64
import io
import json
import math
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from clove_ssl import atomic
from clove_ssl.config import files
from clove_ssl.config.finetuning import protocol
from clove_ssl.config.pretraining import DataConfig, PretrainConfig
from clove_ssl.errors import UserError
from clove_ssl.methods.byol.config import BYOLConfig
from clove_ssl.report import page
from clove_ssl.report.curves import paint_curves, thinned, tick_labels, ticks, value_range
from clove_ssl.report.page import render_report, write_report
from clove_ssl.runs import directory
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.provenance import record_bad_files
from clove_ssl.tasks.scoring.scores import Scores, ScoreTable, write_scores

VOID = {"meta", "br", "link", "img", "line", "path", "input", "hr", "wbr"}
RunMaker = Callable[..., RunDirectory]


class Outline(HTMLParser):
    """Refuses tags that are not closed, and collects text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.text.append(data)


def text_of(page: str) -> str:
    """What a person reads, on one line; fails when the page is not well formed."""
    outline = Outline()
    outline.feed(page)
    outline.close()
    assert outline.open == []
    return " ".join(" ".join(outline.text).split())


def row(step: int, **figures: float) -> dict[str, float]:
    loss = 100 - step / 100
    return {
        "step": step,
        "loss": loss,
        "loss_excess": loss - 100,
        "cos_positive": 0.6,
        "cos_negative": 0.3,
        "data_wait": 0.02,
        "lr": 1.0,
        "epoch": step * 256 / 10_000,
        "images_per_second": 500.0,
        **figures,
    }


@pytest.fixture
def make_run(tmp_path: Path) -> RunMaker:
    def make(
        rows: list[dict[str, float]],
        source: str = "photos",
        starts: list[dict[str, Any]] | None = None,
        name: str = "my run",
        **options: Any,
    ) -> RunDirectory:
        run = directory.create(tmp_path / name.replace("/", "_"))
        config = PretrainConfig(
            out=run.path, data=DataConfig(source=source), **{"batch_size": 256, **options}
        )
        files.save(config, run.config)
        run.metrics.write_text("".join(json.dumps(each) + "\n" for each in rows))
        run.provenance.write_text(json.dumps({"starts": starts or []}))
        return run

    return make


def finish(run: RunDirectory) -> None:
    run.backbone.write_bytes(b"weights")


def test_a_finished_run_is_summarised(make_run: RunMaker) -> None:
    run = make_run(
        [row(step) for step in range(1, 101)], starts=[{"device": "Fast GPU", "step": 0}]
    )
    finish(run)
    path = write_report(run)
    assert path == run.report
    text = text_of(path.read_text())
    assert "my run" in text
    assert "finished after 100 steps" in text
    assert "Method clove" in text
    assert "Backbone resnet50" in text
    assert "Data photos" in text
    assert "Images 10,000" in text
    assert "Steps 100 of 7,812" in text
    assert "Epochs 2.56 of 200" in text
    assert "Final loss 99, 1 below the margin" in text
    assert "Throughput 500 images/s" in text
    assert "Device Fast GPU" in text
    assert "Training time 51 s" in text  # 100 steps of 256 images at 500 a second
    assert "Trained, but not measured" in text


def test_a_run_without_a_logged_step_has_a_report(make_run: RunMaker) -> None:
    text = text_of(write_report(make_run([])).read_text())
    assert "no step logged yet" in text
    assert "Images not known yet" in text


def test_a_run_with_one_step_has_a_report(make_run: RunMaker) -> None:
    page = write_report(make_run([row(1)])).read_text()
    assert "interrupted at step 1" in text_of(page)
    assert page.count("<svg") == 7


def test_a_run_in_progress_is_called_running(make_run: RunMaker) -> None:
    run = make_run([row(1)])
    with directory.locked(run):
        text = text_of(write_report(run).read_text())
    assert "running at step 1" in text
    assert "clove resume" not in text


def test_a_torn_last_line_does_not_matter(make_run: RunMaker) -> None:
    run = make_run([row(1), row(2)])
    with run.metrics.open("a") as file:
        file.write('{"step": 3, "lo')
    assert "at step 2" in text_of(write_report(run).read_text())


def test_all_starts_of_a_resumed_run_are_listed(make_run: RunMaker) -> None:
    starts = [{"time": "monday", "step": 0}, {"time": "tuesday", "step": 50}]
    text = text_of(write_report(make_run([row(1)], starts=starts)).read_text())
    assert "2 starts" in text
    assert "tuesday 50" in text


def test_the_page_needs_no_other_file(make_run: RunMaker) -> None:
    page = write_report(make_run([row(step) for step in range(1, 30)])).read_text()
    assert not re.search(
        r"https?:|//[a-z]|src=(?!\"data:)|href=(?!\"data:|\"#)|url\(|@import|fetch\(", page
    )
    assert "default-src 'none'" in page


def test_what_users_typed_cannot_become_markup(make_run: RunMaker) -> None:
    command = {"command": ["clove", "</pre><script>alert(1)</script>"]}
    run = make_run([row(1)], source="<img src=x>", starts=[command])
    page = write_report(run).read_text()
    assert "<script>alert" not in page
    assert page.count("<script") == 2  # the points of the curves, and what draws them
    assert "<img" not in page
    assert "<img src=x>" in text_of(page)


def test_a_name_cannot_end_the_script(make_run: RunMaker) -> None:
    run = make_run([row(1)], name="<script>x</script>")
    page = render_report([run])
    assert "</script>x" not in page
    assert page.count("</script>") == 2


def test_a_file_name_that_is_no_text_can_be_reported(make_run: RunMaker) -> None:
    run = make_run([row(1)], starts=[{"command": ["caf\udce9.jpg"]}])
    assert "caf" in write_report(run).read_text(encoding="utf-8")


def test_unknown_metrics_are_shown_under_other(make_run: RunMaker) -> None:
    text = text_of(write_report(make_run([row(1, my_own_figure=0.25)])).read_text())
    assert text.index("Other metrics") < text.index("my own figure 0.25")


def test_broken_values_are_counted_and_shown(make_run: RunMaker) -> None:
    rows = [row(1), row(2, loss=math.nan), row(3, loss=math.inf)]
    text = text_of(write_report(make_run(rows)).read_text())
    assert "2 logged values are not a finite number" in text
    assert "Problem · Loss. Not a number since step 2" in text


def test_a_metric_that_was_never_a_number_has_a_card(make_run: RunMaker) -> None:
    page = write_report(make_run([row(1, feature_std=math.nan)])).read_text()
    assert "No value to draw yet" in text_of(page)


def test_shares_are_shown_in_percent(make_run: RunMaker) -> None:
    text = text_of(write_report(make_run([row(1, data_wait=0.25)])).read_text())
    assert "Waiting for data 25 %" in text


def test_unreadable_files_are_counted_once(make_run: RunMaker) -> None:
    run = make_run([row(1)])
    line = "2026-01-01 10:00:0{} warning cannot read {}: an empty file; another took its place\n"
    run.log.write_text(line.format(1, "a.jpg") + line.format(2, "b.jpg") + line.format(3, "a.jpg"))
    assert "2 files could not be read" in text_of(write_report(run).read_text())


def test_unreadable_files_and_choices_are_read_from_the_files_of_a_run(make_run: RunMaker) -> None:
    reasons = {"value": True, "reason": "as asked"}, {"value": 4, "reason": "8 cores"}
    choices = {**dict(zip(("compilation", "workers"), reasons, strict=True)), "plan": {}}
    run = make_run([row(1)], starts=[{"device": "cpu", "choices": choices}])
    record_bad_files(run, {"a.jpg": "an empty file", "b.jpg": "no image"})
    record_bad_files(run, {"a.jpg": "an empty file"})
    run.log.write_text("2026-01-01 10:00:01 warning cannot read c.jpg: the log is not asked\n")
    text = text_of(write_report(run).read_text())
    assert "2 files could not be read" in text
    assert "Compilation yes (as asked)" in text
    assert "Workers 4 (8 cores)" in text


def test_the_size_of_the_data_is_known_before_the_first_step(make_run: RunMaker) -> None:
    run = make_run([], starts=[{"choices": {"plan": {"images": 51_200}}}])
    text = text_of(write_report(run).read_text())
    assert "Images 51,200" in text
    assert "of 40,000" in text  # steps: 200 epochs of 200


def test_no_folder_of_the_machine_is_on_the_first_screens(make_run: RunMaker) -> None:
    run = make_run([row(1)], source="/home/somebody/photos/")
    probe = {"backbone": "my run", "stages": ["c5"], "value": 0.4, "is_share": True}
    own = {**probe, "title": "correspondence", "figure": "correspondence"}
    run.probes.write_text(json.dumps([{**own, "data": "/home/somebody/photos", "size": 96}]))
    page = write_report(run).read_text()
    assert "Data photos" in text_of(page)
    assert "on photos at 96 px" in text_of(page)
    assert "somebody" not in page[: page.index('id="details"')]


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        (
            "Use it: clove finetune TASK --backbone a/b.c. Longer may help: --epochs 9.",
            'Use it: <code>clove finetune TASK <span class="flag">--backbone</span> a/b.c</code>. '
            'Longer may help: <code class="flag">--epochs</code> 9.',
        ),
        ("Go on with: clove resume a<b", "Go on with: <code>clove resume a&lt;b</code>"),
        ("Train longer.", "Train longer."),
    ],
)
def test_what_to_type_is_set_apart(text: str, marked: str) -> None:
    assert str(page._mark_commands(text)) == marked


def test_probes_are_compared_on_equal_data_only(make_run: RunMaker) -> None:
    run = make_run([row(1)])
    probe = {"accuracy": 0.8, "stages": ["c4", "c5"]}
    probes = [
        {"backbone": "mine", "data": "VOC", "miou": 0.4, "interval": [0.35, 0.5], **probe},
        {"backbone": "random:x", "data": "VOC", "miou": 0.1, "interval": [0.05, 0.15], **probe},
        {"backbone": "mine", "data": "scenes", "miou": 0.6, "interval": [0.6, 0.6], **probe},
    ]
    run.probes.write_text(json.dumps(probes))
    page = write_report(run).read_text()
    text = text_of(page)
    assert "mine (c4, c5) 40.0 % 35.0 % to 50.0 %, pixel accuracy 80.0 %" in text
    assert text.count("mine (c4, c5)") == 2
    fills = re.findall(r'class="fill" style="width: ([0-9.]+)%', page)
    ends = [100 / 1.05 * share for share in (0.8, 0.2, 1.0)]  # an axis ends a little later
    assert [float(fill) for fill in fills] == pytest.approx(ends, abs=0.01)
    assert page.count('class="baseline"') == 1
    assert text.count("higher is better →") == 2


def test_scores_of_zero_can_be_drawn(make_run: RunMaker) -> None:
    run = make_run([])
    probe = {"backbone": "b", "data": "d", "miou": 0.0, "interval": [0.0, 0.0], "accuracy": 0.0}
    run.probes.write_text(json.dumps([probe]))
    assert "width: 0.00%" in write_report(run).read_text()


@pytest.mark.parametrize("content", ["[{", "[1, 2]", '{"a": 1}', "3", '[{"value": "x"}]'])
def test_a_damaged_probes_file_is_named(make_run: RunMaker, content: str) -> None:
    run = make_run([row(1)])
    run.probes.write_text(content)
    with pytest.raises(UserError, match=r"probes\.json is damaged.*clove probe"):
        write_report(run)


@pytest.mark.parametrize(
    "data",
    [
        b"\x89PNG\r\n\x1a\n",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        b"P5 20000 20000 255\n",
    ],
)
def test_a_damaged_picture_is_named(data: bytes, make_run: RunMaker) -> None:
    run = make_run([row(1)])
    run.pictures.mkdir(exist_ok=True)
    (run.pictures / "features.png").write_bytes(data)
    with pytest.raises(UserError, match=r"features\.png is no picture.*clove report"):
        write_report(run)


@pytest.mark.parametrize("content", ["{}", "[]"])
def test_provenance_without_starts_is_left_out(make_run: RunMaker, content: str) -> None:
    run = make_run([row(1)])
    run.provenance.write_text(content)
    assert "How it was made" in write_report(run).read_text()


def test_damaged_provenance_is_named(make_run: RunMaker) -> None:
    run = make_run([row(1)])
    run.provenance.write_text('{"starts": [3]}')
    with pytest.raises(UserError, match="provenance.json is damaged"):
        write_report(run)


def test_percent_signs_stay_with_their_numbers(make_run: RunMaker) -> None:
    page = write_report(make_run([row(1, data_wait=0.02)])).read_text()
    assert "2\N{NO-BREAK SPACE}%: the data loader" in page


def test_a_failed_write_keeps_the_old_report(
    make_run: RunMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run([row(1)])
    write_report(run)
    before = run.report.read_bytes()

    def full_disk(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic.os, "replace", full_disk)
    with pytest.raises(UserError, match="the disk is full"):
        write_report(run)
    assert run.report.read_bytes() == before
    assert not [name for name in os.listdir(run.path) if name.endswith(".writing")]


def test_long_runs_are_thinned(make_run: RunMaker) -> None:
    page = write_report(make_run([row(step) for step in range(1, 3000)])).read_text()
    paths = re.findall(r'<path class="line run-0" data-run="0" d="([^"]*)"', page)
    assert len(paths) == page.count("<svg")
    assert all(100 < path.count("L") < 400 for path in paths)


def points_of(page: str) -> list[dict[str, Any]]:
    """The curves that the page's script knows."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page)
    assert found
    curves: list[dict[str, Any]] = json.loads(found[1])["curves"]
    return curves


def test_two_runs_share_every_curve(make_run: RunMaker) -> None:
    first = make_run([row(step) for step in range(1, 9)], name="first")
    second = make_run([row(step, loss=50.0) for step in range(1, 5)], name="second")
    page = render_report([first, second])
    text = text_of(page)
    assert "2 runs first, second." in text
    assert page.count("<svg") == 7
    assert page.count('class="line run-1"') == 7
    curve = points_of(page)[0]
    assert curve["series"]["0"][0] == [1, 99.99]
    assert curve["series"]["1"] == [[step, 50.0] for step in range(1, 5)]
    assert "first 99.92 second 50" in text


def test_the_script_gets_nothing_for_what_is_not_a_number(make_run: RunMaker) -> None:
    run = make_run([row(1, loss=math.nan), row(2, loss=math.inf), row(3)])
    assert points_of(render_report([run]))[0]["series"]["0"] == [[1, None], [2, None], [3, 99.97]]


def test_only_options_that_differ_are_compared(make_run: RunMaker) -> None:
    first, second = make_run([], name="a", seed=1), make_run([], name="b", seed=2)
    page = render_report([first, second])
    text = text_of(page)
    assert "Option a b seed 1 2" in text
    assert "batch_size" not in text.partition("How it was made")[0]


def test_equal_runs_are_said_to_be_equal(make_run: RunMaker) -> None:
    text = text_of(render_report([make_run([], name="a"), make_run([], name="b")]))
    assert "All options of a and b are the same." in text


def test_options_of_one_method_alone_are_set_apart(make_run: RunMaker) -> None:
    runs = [make_run([], name="a"), make_run([], name="b", method=BYOLConfig())]
    text = text_of(render_report(runs))
    before, _, after = text.partition("options that not all of them have")
    assert "method. name clove byol" in before
    assert "method. attention. heads 8 –" in after


def test_runs_of_one_name_are_told_apart(make_run: RunMaker, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    first = make_run([row(1)], name="same")
    second = RunDirectory(tmp_path / "other" / "same")
    shutil.copytree(first.path, second.path)
    text = text_of(render_report([first, second]))
    assert f"{first.path}, {second.path}." in text


def test_worries_name_their_run(make_run: RunMaker) -> None:
    runs = [make_run([row(1)], name="fine"), make_run([row(1, loss=math.nan)], name="broken")]
    text = text_of(render_report(runs))
    assert "Problem · broken · Loss. Not a number since step 1" in text
    assert "broken Something is wrong It shows in the loss." in text


def test_probes_that_two_runs_know_are_shown_once(make_run: RunMaker) -> None:
    probe = {"backbone": "mine", "data": "VOC", "miou": 0.4, "interval": [0.35, 0.5]}
    runs = [make_run([row(1)], name=name) for name in "ab"]
    for run in runs:
        run.probes.write_text(json.dumps([probe]))
    assert text_of(render_report(runs)).count("mine 40.0 %") == 1


@pytest.mark.parametrize("size", [(20, 40_000), (90_000, 1), (1300, 20_000)])
def test_pictures_of_any_shape_are_inside_the_page(
    size: tuple[int, int], make_run: RunMaker
) -> None:
    run = make_run([row(1)])
    run.pictures.mkdir()
    Image.new("RGB", size).save(run.pictures / "features.png")
    assert "data:image/" in render_report([run])


def test_pictures_of_a_run_are_inside_the_page(make_run: RunMaker) -> None:
    run = make_run([row(1)])
    run.pictures.mkdir()
    Image.new("RGB", (2000, 100), (200, 30, 30)).save(run.pictures / "features.png")
    page = render_report([run])
    found = re.search(
        r'width="1250" height="62" src="data:image/(?:webp|png);base64,([^"]+)"', page
    )
    assert found
    shown = Image.open(io.BytesIO(base64.b64decode(found[1]))).convert("RGB")
    assert shown.getpixel((5, 5)) == pytest.approx((200, 30, 30), abs=4)


def test_fine_tuning_runs_stand_beside_pre_training(make_run: RunMaker, tmp_path: Path) -> None:
    tuned = directory.create(tmp_path / "tuned")
    files.save(protocol("voc-c4", tuned.path, "runs/a"), tuned.config)
    lines = [{"step": step, "loss": 2.0 / step} for step in (1, 2)] + [{"step": 2, "box_AP": 0.3}]
    tuned.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary, by_class = {"AP": 0.3, "AP50": 0.6}, {"cat": {"AP": 0.3}}
    table = ScoreTable("box", "COCO average precision", summary, by_class)
    write_scores(tuned.scores, Scores((table,), images=7))
    page = render_report([make_run([row(1)], name="plain"), tuned])
    text = text_of(page)
    assert "voc-c4: box COCO average precision, 7 images." in text
    assert "Run AP AP50 tuned 30.00 60.00" in text
    assert "box AP 30.00" in text  # in the summary
    assert "class AP cat 30.00" in text
    assert "Fine-tuning: Loss" in text
    assert "box_AP" not in page.partition('id="curves"')[2]  # it was logged once
    assert points_of(page)[-1]["series"] == {"1": [[1, 2.0], [2, 1.0]]}


def test_many_curves_of_a_kind_are_folded_behind_the_first_ones(make_run: RunMaker) -> None:
    figures = {f"figure_{number}": 0.5 for number in range(7)}
    page = render_report([make_run([row(1, **figures)])])
    assert "More of Other metrics (3)" in text_of(page)
    folded = page.index("More of Other metrics")
    assert page.index(">figure 3<") < folded < page.index(">figure 4<")


def test_losses_of_a_detector_of_own_classes_have_names(tmp_path: Path) -> None:
    tuned = directory.create(tmp_path / "tuned")
    files.save(protocol("detect", tuned.path, "runs/a"), tuned.config)
    lines = [{"step": step, "loss": 2.0, "loss_rpn_cls": 0.5} for step in (1, 2)]
    tuned.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = text_of(render_report([tuned]))
    assert "Loss on proposals 0.5" in text
    assert "How it was set up" in text
    assert "protocol" not in text


def test_a_fine_tuning_run_without_scores_says_so(tmp_path: Path) -> None:
    tuned = directory.create(tmp_path / "tuned")
    files.save(protocol("voc-c4", tuned.path, "runs/a"), tuned.config)
    text = text_of(render_report([tuned]))
    assert "Not scored yet." in text
    assert "Fine-tuning on voc-c4, at step 0 of 24,000 steps" in text


def test_fine_tunings_of_a_task_stand_side_by_side(tmp_path: Path) -> None:
    runs = []
    for name, score, start in (("random", 0.2, "random"), ("mine", 0.3, "runs/a")):
        tuned = directory.create(tmp_path / name)
        files.save(protocol("voc-c4", tuned.path, start), tuned.config)
        table = ScoreTable("box", "COCO average precision", {"AP": score}, {"cat": {"AP": score}})
        write_scores(tuned.scores, Scores((table,), images=7))
        runs.append(tuned)
    page = render_report(runs)
    text = text_of(page)
    assert "Run AP random 20.00 mine 30.00" in text
    assert "AP by class random mine cat 20.00 30.00" in text
    assert re.findall(r'class="best">([^<]+)', page) == ["30.00"]
    assert "It started from random weights: the baseline" in text
    assert "Random weights, trained for as long, reach 20.0" in text
    assert "fine-tune random weights, too" not in text  # they are here
    assert "fine-tune random weights, too" in text_of(render_report(runs[1:]))


def scored(
    path: Path, start: str, ap: float, *, root: str | None = None, **changes: Any
) -> RunDirectory:
    """A fine-tuning on VOC with a score."""
    tuned = directory.create(path)
    config = protocol("voc-c4", tuned.path, start)
    data = replace(config.data, root=None if root is None else Path(root), **changes)
    files.save(replace(config, data=data), tuned.config)
    table = ScoreTable("box", "COCO average precision", {"AP": ap}, {})
    write_scores(tuned.scores, Scores((table,), images=7))
    return tuned


def test_random_weights_are_no_floor_for_other_images(tmp_path: Path) -> None:
    floor = scored(tmp_path / "random", "random", 0.2, root="cats")
    text = text_of(render_report([floor, scored(tmp_path / "dogs", "runs/a", 0.3, root="dogs")]))
    assert "Random weights, trained for as long" not in text
    cats = scored(tmp_path / "cats", "runs/a", 0.3, root=str(Path("cats").absolute()))
    assert "Random weights, trained for as long" in text_of(render_report([floor, cats]))


def test_random_weights_are_a_floor_however_the_same_images_are_read(tmp_path: Path) -> None:
    files = {"train_annotations": Path("a.json"), "test_annotations": Path("b.json")}
    floor = scored(tmp_path / "random", "random", 0.2, **files)
    absolute = {name: path.absolute() for name, path in files.items()}
    mine = scored(tmp_path / "mine", "runs/a", 0.3, workers=3, prefetch=4, **absolute)
    assert "Random weights, trained for as long" in text_of(render_report([floor, mine]))


def test_a_score_that_nothing_was_measured_for_is_neither_good_nor_best(tmp_path: Path) -> None:
    nothing = scored(tmp_path / "nothing", "random", math.nan)
    text = text_of(render_report([nothing]))
    assert not re.search(r"\bnan\b", text)
    assert "Nothing could be measured" in text
    page = render_report([nothing, scored(tmp_path / "mine", "runs/a", 0.3)])
    assert re.findall(r'class="best">([^<]+)', page) == ["30.00"]
    assert "Random weights, trained for as long" not in text_of(page)


@pytest.mark.parametrize("key", ["scores", "figures"])  # the second is that of older runs
def test_repeated_fine_tunings_are_judged_by_their_mean(tmp_path: Path, key: str) -> None:
    tuned = directory.create(tmp_path / "tuned")
    files.save(replace(protocol("voc-c4", tuned.path, "runs/a"), runs=2), tuned.config)
    spread = {"mean": 0.25, "std": 0.01, "values": [0.24, 0.26]}
    tuned.summary.write_text(json.dumps({"runs": 2, key: {"box_AP": spread}}))
    text = text_of(write_report(tuned).read_text())
    assert "Box AP 25.0 of 100 on average over 2 runs" in text
    assert "box AP 25.00 +- 1.00" in text
    assert "box AP 24.00 26.00" in text


def test_scores_are_compared_with_random_weights_in_words(make_run: RunMaker) -> None:
    run = make_run([row(step) for step in range(1, 101)], name="mine")
    finish(run)
    same = {"data": "photos", "figure": "correspondence", "title": "correspondence"}
    mine = {"backbone": "runs/mine", "value": 0.62, "gain_interval": [0.15, 0.25], **same}
    other = {"backbone": "random:resnet50", "value": 0.42, **same}
    entries = [{**entry, "is_share": True} for entry in (mine, other)]
    run.probes.write_text(json.dumps(entries))
    text = text_of(write_report(run).read_text())
    assert "It has learned" in text
    assert "62.0 % of the time; random weights do so 42.0" in text
    assert "Correspondence 62.0 % (random weights 42.0 %)" in text
    run.probes.write_text(json.dumps([{**entries[0], "gain_interval": [-0.1, 0.3]}, entries[1]]))
    assert "No better than random weights yet" in text_of(write_report(run).read_text())
    diverged = {**entries[0], "value": math.nan, "gain_interval": [math.nan, math.nan]}
    run.probes.write_text(json.dumps([diverged, entries[1]]))
    assert "It has learned" not in text_of(write_report(run).read_text())


def test_lower_is_better_is_not_drawn_as_longer(make_run: RunMaker) -> None:
    run = make_run([row(1)])
    probe = {"data": "photos", "figure": "uniformity", "title": "uniformity", "is_share": False}
    values = {"runs/a": -1.5, "random:resnet50": -1.0}
    entries = [{"backbone": name, "value": value, **probe} for name, value in values.items()]
    run.probes.write_text(json.dumps(entries))
    page = write_report(run).read_text()
    assert "← lower is better" in page
    assert 'class="fill"' not in page
    better, worse = map(float, re.findall(r'class="point" style="left: ([0-9.]+)%', page))
    assert better < worse


def test_damaged_lines_are_named_on_the_page(make_run: RunMaker) -> None:
    run = make_run([row(1), row(2)])
    run.metrics.write_text("nonsense\n" + run.metrics.read_text())
    assert "line 1 is damaged and left out" in text_of(write_report(run).read_text())


def test_every_entry_of_the_contents_leads_somewhere(make_run: RunMaker) -> None:
    page = render_report([make_run([row(1)], name="a"), make_run([row(1)], name="b", seed=2)])
    anchors = re.findall(r'href="#([a-z]+)"', page)
    assert len(anchors) >= 4
    assert all(f'id="{anchor}"' in page for anchor in anchors)


def test_hardware_is_shown_with_its_speed(make_run: RunMaker) -> None:
    start = {"device": "Fast GPU", "cores": 16, "torch": "2.15", "cuda": "13.2", "step": 0}
    text = text_of(render_report([make_run([row(1, memory_gib=12.5)], starts=[start])]))
    assert "CPU cores 16 Software torch 2.15, CUDA 13.2 Throughput 500 images/s" in text
    assert "GPU memory 12.5 GiB" in text


values = st.one_of(st.floats(-1e6, 1e6), st.just(math.nan), st.just(math.inf))


@given(st.lists(values, min_size=1, max_size=2000))
def test_thinning_keeps_ends_extremes_and_order(column: list[float]) -> None:
    points = list(enumerate(column))
    kept = thinned(points, 50)
    finite = [value for value in column if math.isfinite(value)]
    assert len(kept) <= 50
    assert [step for step, _ in kept] == sorted({step for step, _ in kept})
    assert (kept[0][0], kept[-1][0]) == (0, len(points) - 1)
    if finite:
        shown = [value for _, value in kept if math.isfinite(value)]
        assert (min(shown), max(shown)) == (min(finite), max(finite))


def test_thinning_keeps_a_single_gap() -> None:
    points = [(step, math.nan if step == 700 else 1.0) for step in range(2000)]
    assert [step for step, value in thinned(points) if math.isnan(value)] == [700]


def test_numbers_beyond_all_others_have_no_ticks() -> None:
    assert ticks(0.0, 1.7e308) == ticks(-1e308, 1e308) == ticks(1.0, 1.0) == []
    assert tick_labels([]) == []


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=5))
def test_ticks_are_few_round_and_told_apart(column: list[float]) -> None:
    low, high = value_range(column)
    assert low <= min(column) <= max(column) <= high
    positions = ticks(low, high)
    slack = 1e-6 * (high - low)
    assert 2 <= len(positions) <= 7
    assert all(low - slack <= position <= high + slack for position in positions)
    assert len(set(tick_labels(positions))) == len(positions)


def test_the_axis_of_positive_values_does_not_go_below_zero() -> None:
    assert value_range([0.01, 1.0])[0] == 0.0


@pytest.mark.parametrize(
    ("positions", "labels"),
    [
        ([0.0, 0.5, 1.0], ["0", "0.5", "1.0"]),
        ([0, 5000, 10_000], ["0", "5k", "10k"]),
        ([0, 500_000, 1_000_000], ["0", "0.5M", "1.0M"]),
        ([1e-5, 2e-5], ["1e-05", "2e-05"]),
        ([99.99, 99.995, 100.0], ["99.990", "99.995", "100.000"]),
    ],
)
def test_tick_labels_have_as_many_digits_as_needed(
    positions: list[float], labels: list[str]
) -> None:
    assert tick_labels(positions) == labels


def path_of(points: list[tuple[int, float]]) -> str:
    picture = paint_curves({0: points}, "x")
    found = re.search(r'<path class="line run-0" data-run="0" d="([^"]*)"', picture)
    assert found
    return found[1]


def heights_of(points: list[tuple[int, float]]) -> list[float]:
    return [float(y) for y in re.findall(r"[ML][0-9.]+ ([0-9.]+)", path_of(points))]


def test_a_gap_interrupts_the_line() -> None:
    points = [(1, 1.0), (2, 2.0), (3, math.nan), (4, 1.0), (5, 1.5)]
    assert re.fullmatch(r"M[^ML]*h0L[^ML]*M[^ML]*h0L[^ML]*", path_of(points))


def test_a_point_between_gaps_is_still_drawn() -> None:
    points = [(1, math.nan), (2, 5.0), (3, math.inf)]
    assert re.fullmatch(r"M[0-9. ]+h0", path_of(points))


@pytest.mark.parametrize("value", [0.0, -3.0, 7.5, 1e-320, 1e35])
def test_constant_curves_are_flat_and_inside_the_picture(value: float) -> None:
    heights = heights_of([(1, value), (2, value)])
    assert len(heights) == 2
    assert len(set(heights)) == 1
    assert 0 < heights[0] < 170


def test_larger_values_are_drawn_higher() -> None:
    first, second, third = heights_of([(1, 1.0), (2, 2.0), (3, 4.0)])
    assert first > second > third
    assert (first - second) * 2 == pytest.approx(second - third, abs=0.3)


def test_the_label_of_a_curve_is_escaped() -> None:
    assert 'aria-label="a &#34;b&#34; &lt;c&gt;"' in paint_curves({0: [(1, 1.0)]}, 'a "b" <c>')
