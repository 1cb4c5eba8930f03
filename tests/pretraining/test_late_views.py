"""Views that are larger in the last part of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders.runs.interruptions import assert_same, crash_after, figures, final_state
from builders.runs.tiny_runs import tiny_config

from clove_ssl.config.pretraining import LateViewsConfig, PretrainConfig
from clove_ssl.errors import UserError
from clove_ssl.methods.base import Progress
from clove_ssl.methods.clove.method import CLoVE
from clove_ssl.methods.recipes import recipe
from clove_ssl.pretraining import run as pretraining
from clove_ssl.views.batch import ViewBatch

LATE = LateViewsConfig(share=0.5, enlarge=1.5)  # views of 96 and 64 pixels instead of 64 and 32


def late_config(out: Path, **changes: Any) -> PretrainConfig:
    return tiny_config(out, late_views=LATE, **changes)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing has interrupted."""
    out = tmp_path_factory.mktemp("whole") / "run"
    pretraining.pretrain(late_config(out))
    return out


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[int]]]:
    """The steps of a run, with the sides of their views."""
    steps: list[tuple[int, list[int]]] = []
    forward = CLoVE.forward

    def noted(self: CLoVE, batch: ViewBatch, progress: Progress) -> Any:
        steps.append((progress.step, sorted({view.pixels.shape[-1] for view in batch.views})))
        return forward(self, batch, progress)

    monkeypatch.setattr(CLoVE, "forward", noted)
    return steps


def test_views_are_larger_from_the_right_step_on(
    seen: list[tuple[int, list[int]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pretraining.pretrain(late_config(tmp_path / "run"))
    early, late = [32, 64], [64, 96]  # 48 pixels are a cell and a half, and become two
    assert seen == [(0, early), (1, early), (2, early), (3, late), (4, late), (5, late)]
    shown = " ".join(capsys.readouterr().out.split())
    assert "late views from step 4 on: 96 instead of 64, 64 instead of 32 pixels" in shown


def test_the_steps_before_them_are_those_of_a_run_without(whole: Path, tmp_path: Path) -> None:
    pretraining.pretrain(tiny_config(tmp_path / "usual"))
    late, usual = figures(whole), figures(tmp_path / "usual")
    assert late[:3] == usual[:3]
    assert late[3:] != usual[3:]


@pytest.mark.parametrize("steps", [2, 3, 5])
def test_a_run_that_died_before_at_or_after_the_change_goes_on_as_if_not(
    steps: int, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torn = late_config(tmp_path / "torn")
    crash_after(steps, monkeypatch, torn)
    assert pretraining.resume(torn.out).finished
    assert_same(final_state(torn.out), final_state(whole))
    assert figures(torn.out) == figures(whole)


@pytest.mark.parametrize(("cache", "workers"), [("ram", 2), ("off", 0)])
def test_photos_stay_from_one_part_to_the_other(
    cache: str, workers: int, whole: Path, tmp_path: Path
) -> None:
    usual = tiny_config(tmp_path).data
    assert usual.cache == "auto"
    other = replace(usual, cache=cache, workers=workers)
    pretraining.pretrain(late_config(tmp_path / "other", data=other))
    assert figures(tmp_path / "other") == figures(whole)


def test_probes_at_the_change_are_made_once(tmp_path: Path) -> None:
    config = late_config(tmp_path / "run")
    probe = replace(config.probe, every_epochs=1.2, min_steps=1, images=8)  # every third step
    pretraining.pretrain(replace(config, probe=probe))
    probed = [line["step"] for line in figures(tmp_path / "run") if "probe_seconds" in line]
    assert probed == [3, 6]


def test_all_steps_may_have_them(seen: list[tuple[int, list[int]]], tmp_path: Path) -> None:
    late = replace(LATE, share=1.0)
    pretraining.pretrain(tiny_config(tmp_path / "run", late_views=late, steps=2))
    assert seen == [(0, [64, 96]), (1, [64, 96])]


def test_patches_cannot_be_enlarged(tmp_path: Path) -> None:
    config = recipe("detco-r50-200ep", tmp_path)
    with pytest.raises(UserError, match="detco cuts frames .* Leave out --late-views.share"):
        replace(config, late_views=LATE)


@pytest.mark.parametrize(
    ("share", "steps", "first"),
    [(0.0, 10, 10), (0.15, 33_300, 28_305), (1.0, 7, 0), (0.01, 10, 10)],
)
def test_when_they_begin(share: float, steps: int, first: int) -> None:
    assert LateViewsConfig(share=share).first_step(steps) == first


def test_what_they_cost(tmp_path: Path) -> None:
    views = recipe("clove-plus-r18-small", tmp_path).method.view_specs()  # 2 x 160, 2 x 96
    late = LateViewsConfig(share=0.2)
    assert [spec.size for spec in late.specs(views)] == [224, 224, 128, 128]
    pixels = (224**2 + 128**2) / (160**2 + 96**2)
    assert late.cost(views) == pytest.approx(0.8 + 0.2 * pixels)
    assert LateViewsConfig().cost(views) == 1
    assert late.most_pixels(views) == 2 * (224**2 + 128**2)
    assert LateViewsConfig().most_pixels(views) == 2 * (160**2 + 96**2)
