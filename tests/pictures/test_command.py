"""clove show: pictures of a real run, and clear words where there can be none."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders.runs.tiny_runs import tiny_config
from PIL import Image

from clove_ssl import cli
from clove_ssl.config import files
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.config.showing import PICTURES, ReportConfig, ShowConfig
from clove_ssl.console import Console
from clove_ssl.data.order import Draws
from clove_ssl.data.reading import RenderedViews
from clove_ssl.data.sources import open_source
from clove_ssl.errors import UserError
from clove_ssl.methods.byol.config import BYOLConfig
from clove_ssl.methods.cp2.config import CP2Config
from clove_ssl.methods.random.config import RandomConfig
from clove_ssl.pictures import command as showing
from clove_ssl.pictures.sources import choose_images, open_networks
from clove_ssl.pictures.views import draw_all
from clove_ssl.pretraining.going_on import unrestored_method
from clove_ssl.pretraining.run import pretrain
from clove_ssl.report import command as reporting
from clove_ssl.runs import directory
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.training.checkpoints import CheckpointStore


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of CLoVE."""
    path = tmp_path_factory.mktemp("runs") / "tiny"
    pretrain(tiny_config(path, steps=2))
    return path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy without pictures that a test may damage."""
    ignore = shutil.ignore_patterns("pictures")
    return Path(shutil.copytree(finished, tmp_path / "run", ignore=ignore))


def written(config: PretrainConfig) -> Path:
    """A run of which there is nothing but its config."""
    files.save(config, directory.create(config.out).config)
    return config.out


@pytest.mark.parametrize("what", PICTURES)
def test_every_picture_can_be_drawn_of_a_finished_run(
    finished: Path, what: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["show", what, str(finished), "--count", "2"]) == 0
    path = finished / "pictures" / f"{what}.png"
    assert capsys.readouterr().out.split() == [str(path)]
    picture = np.asarray(Image.open(path).convert("RGB"))
    assert picture.shape[1] > 400
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 500  # not a blank page


def test_named_images_and_folders_are_shown(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for number, size in enumerate([(90, 60), (40, 80), (64, 64)]):
        Image.effect_noise(size, 50).save(tmp_path / "photos" / f"{number}.png")
    config = ShowConfig(
        what="similarity",
        run=finished,
        images=(tmp_path / "photos" / "1.png", tmp_path / "photos"),
        out=tmp_path / "sheet.png",
        at=(1.0, 0.0),
    )
    assert showing.paint_sheet(config) == tmp_path / "sheet.png"
    names = [image.name for image in choose_images(config, None)]
    assert names == ["1.png", "0.png", "1.png", "2.png"]


def test_the_views_shown_are_those_that_the_run_saw(tmp_path: Path) -> None:
    trained = tiny_config(tmp_path / "r", seed=5)
    images = choose_images(ShowConfig(what="views", run=tmp_path, count=3), trained)
    reader = RenderedViews(
        open_source(trained.data), trained.method.view_specs(), trained.data, seed=trained.seed
    )
    indices = np.array([image.index for image in images])
    batch = reader[Draws(np.full_like(indices, 2), indices)]
    for number, drawn in enumerate(draw_all(images, trained, epoch=2)):
        for view, pixels in enumerate(drawn.pixels):
            assert torch.equal(pixels, batch.pixels[view][number])


def test_pasted_views_show_another_image_around_them(tmp_path: Path) -> None:
    trained = tiny_config(tmp_path / "r", method=CP2Config())
    images = choose_images(ShowConfig(what="views", run=tmp_path, count=4), trained)
    reader = RenderedViews(
        open_source(trained.data), trained.method.view_specs(), trained.data, seed=0
    )
    indices = np.array([image.index for image in images])
    batch = reader[Draws(np.zeros_like(indices), indices)]
    shown = draw_all(images, trained, epoch=0)
    for number, drawn in enumerate(shown):
        assert all(
            torch.equal(mine, theirs[number])
            for mine, theirs in zip(drawn.pixels, batch.pixels, strict=True)
        )
    with pytest.raises(UserError, match="Name two or more"):
        draw_all(images[:1], trained, epoch=0)


def test_student_and_teacher_stand_side_by_side(finished: Path) -> None:
    networks = open_networks(ShowConfig(what="features", run=finished), both=True)
    assert [network.label for network in networks] == ["student", "teacher, step 2"]
    student, teacher = (next(network.backbone.parameters()) for network in networks)
    assert not torch.equal(student, teacher)
    only = open_networks(ShowConfig(what="features", run=finished, branch="teacher"), both=True)
    assert torch.equal(next(only[0].backbone.parameters()), teacher)


def test_without_checkpoints_the_export_is_shown(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    networks = open_networks(ShowConfig(what="features", run=run), both=True)
    assert [network.label for network in networks] == ["student"]
    for what, branch in (("attention", None), ("features", "teacher")):
        with pytest.raises(UserError, match="no intact checkpoint"):
            showing.paint_sheet(ShowConfig(what=what, run=run, branch=branch))  # type: ignore[arg-type]


def test_an_unfinished_run_is_shown_from_its_checkpoint(run: Path) -> None:
    shutil.rmtree(run / "export")
    networks = open_networks(ShowConfig(what="features", run=run), both=True)
    assert [network.label for network in networks] == ["student, step 2", "teacher, step 2"]


def test_a_backbone_file_is_enough_for_features(run: Path) -> None:
    file = run / "export" / "backbone.safetensors"
    path = showing.paint_sheet(ShowConfig(what="features", run=file, count=1, enlarge=0.5, slide=1))
    assert path == run / "export" / "backbone-features.png"
    with pytest.raises(UserError, match="needs a run"):
        showing.paint_sheet(ShowConfig(what="views", run=file))


def test_scenes_stand_in_for_data_that_is_gone(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = tiny_config(tmp_path / "r")
    trained = replace(trained, data=replace(trained.data, source=str(tmp_path / "moved")))
    images = choose_images(ShowConfig(what="views", run=finished, count=1), trained)
    assert images[0].pixels.shape == (3, 256, 256)
    assert "built-in scenes are shown" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["attention", "RUN", "--branch", "teacher"], "Only the student has attention"),
        (["features", "RUN", "--stage", "c9"], "test_resnet has c2, c3, c4"),
        (["features", "RUN", "nowhere.jpg"], "nowhere.jpg does not exist"),
        (["features", "RUN", "RUN/config.yaml"], "config.yaml cannot be shown"),
        (["features", "RUN", "--enlarge", "16", "RUN/wide.png"], "smaller --enlarge"),
        (["views", "nothing"], "nothing does not exist"),
    ],
)
def test_what_cannot_be_shown_is_said_in_one_message(
    run: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.new("RGB", (4000, 100)).save(run / "wide.png")
    assert cli.main(["show", *(each.replace("RUN", str(run)) for each in options)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_pipe_is_no_image(run: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    config = ShowConfig(what="views", run=run, images=(tmp_path / "pipe.png",))
    with pytest.raises(UserError, match="pipe.png cannot be shown: .*not a regular file"):
        showing.paint_sheet(config)


def test_methods_without_such_parts_say_so(tmp_path: Path) -> None:
    byol = written(tiny_config(tmp_path / "byol", method=BYOLConfig()))
    with pytest.raises(UserError, match=r"byol does not match cells .* --threshold 0.7"):
        showing.paint_sheet(ShowConfig(what="matches", run=byol))
    anyway = ShowConfig(what="matches", run=byol, threshold=0.7, count=1)
    assert showing.paint_sheet(anyway).is_file()
    random = written(tiny_config(tmp_path / "random", method=RandomConfig(), steps=None))
    with pytest.raises(UserError, match="random looks at no views"):
        showing.paint_sheet(ShowConfig(what="views", run=random))
    with pytest.raises(UserError, match="random has no teacher"):
        showing.paint_sheet(ShowConfig(what="features", run=random, branch="teacher"))


def test_a_method_without_attention_says_so(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "byol", method=BYOLConfig())
    path = written(config)
    store = CheckpointStore(RunDirectory(path).checkpoints, keep=1, warn=Console().warn)
    store.save(1, {"learner": unrestored_method(config).state_dict()})
    with pytest.raises(UserError, match="byol has no attention to show"):
        showing.paint_sheet(ShowConfig(what="attention", run=path))


def test_a_report_draws_what_is_missing_or_out_of_date(run: Path) -> None:
    path = reporting.report_runs(ReportConfig(runs=(run,)))
    assert path == run / "report.html"
    assert path.read_text().count('src="data:image/') == len(PICTURES)
    times = {each: each.stat().st_mtime_ns for each in (run / "pictures").iterdir()}
    assert len(times) == len(PICTURES)
    (run / "pictures" / "views.png").unlink()
    reporting.paint_pictures(RunDirectory(run), Console())
    renewed = [each.name for each in times if each.stat().st_mtime_ns != times[each]]
    assert renewed == ["views.png"]


def test_a_picture_that_fails_does_not_take_the_report_with_it(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(run / "checkpoints")
    reporting.report_runs(ReportConfig(runs=(run,)))
    assert "no picture of attention" in " ".join(capsys.readouterr().out.split())
    assert (run / "report.html").read_text().count('src="data:image/') == len(PICTURES) - 1


def test_several_runs_are_reported_here_or_where_asked(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, tmp_path / "other")
    assert cli.main(["report", "run", "other", "--no-pictures"]) == 0
    assert "2 runs" in (tmp_path / "report.html").read_text()
    (tmp_path / "shared").mkdir()
    assert cli.main(["report", "run", "--no-pictures", "--out", "shared"]) == 0
    assert (tmp_path / "shared" / "report.html").is_file()
    assert cli.main(["report", "run", "--no-pictures", "--out", "no/where.html"]) == 2
    assert cli.main(["report"]) == 2
