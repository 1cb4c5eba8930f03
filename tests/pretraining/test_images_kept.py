"""Where photos stay, and what is said about it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders.runs.cached_feeds import ALONE
from builders.runs.interruptions import assert_same, crash_after, final_state
from builders.runs.tiny_runs import tiny_config

from clove_ssl.config.pretraining import DataConfig, PretrainConfig
from clove_ssl.config.views import ViewsConfig
from clove_ssl.data.kept_photos import DecodedSize
from clove_ssl.data.sources import open_source
from clove_ssl.errors import UserError
from clove_ssl.pretraining.images import FreeMemory, choose_cache, decide_place
from clove_ssl.pretraining.run import pretrain, resume
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.provenance import read_starts

GIB = 2**30
PHOTOS = DecodedSize(bytes=GIB, samples=256)  # with a margin 1.17 GiB


@pytest.mark.parametrize(
    ("free", "on_gpu", "processes", "place"),
    [
        (FreeMemory(gpu=12 * GIB, ram=9 * GIB), True, 1, "gpu"),
        (FreeMemory(gpu=12 * GIB, ram=9 * GIB), True, 2, "ram"),  # they share one copy
        (FreeMemory(gpu=11 * GIB, ram=9 * GIB), True, 1, "ram"),
        (FreeMemory(gpu=0, ram=3 * GIB), False, 1, "ram"),
        (FreeMemory(gpu=3 * GIB, ram=2 * GIB), True, 1, "off"),
    ],
)
def test_photos_stay_where_they_take_a_small_share(
    free: FreeMemory, on_gpu: bool, processes: int, place: str
) -> None:
    choice = decide_place("auto", PHOTOS, free, renders_on_gpu=on_gpu, processes=processes)
    assert choice.value == place
    assert choice.reason.startswith("about 1.00 GiB decoded")
    assert choice.capacity == (0 if place == "off" else PHOTOS.with_margin)


def test_the_reason_has_the_figures() -> None:
    free = FreeMemory(gpu=3 * GIB, ram=2 * GIB)
    choice = decide_place("auto", PHOTOS, free, renders_on_gpu=True, processes=1)
    assert "10 % of the free GPU memory is 0.30 GiB" in choice.reason
    assert "50 % of the free host memory is 1.00 GiB" in choice.reason


def test_what_is_asked_for_by_name_may_take_more_or_is_refused() -> None:
    def decided(gpu: float) -> str:
        free = FreeMemory(gpu=int(gpu * GIB), ram=0)
        return decide_place("gpu", PHOTOS, free, renders_on_gpu=True, processes=1).value

    assert decided(1.5) == "gpu"
    with pytest.raises(UserError, match=r"1\.17 GiB, but 80 % .* is 1\.12 GiB.*--data\.cache ram"):
        decided(1.4)


def config_for(out: Path, cache: Any, **changes: Any) -> PretrainConfig:
    config = tiny_config(out, **changes)
    return replace(config, data=replace(config.data, cache=cache))


def test_photos_cannot_stay_on_a_gpu_that_does_not_render() -> None:
    data = DataConfig(cache="gpu")
    with pytest.raises(UserError, match="needs views that are rendered on a GPU"):
        choose_cache(data, open_source(data), ALONE, specs=(), renders_on_gpu=False, repeats=True)


def test_a_run_is_the_run_without_it_even_if_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretrain(config_for(tmp_path / "off", "off", steps=4))
    assert "photos         not cached  (as asked)" in capsys.readouterr().out
    crash_after(3, monkeypatch, config_for(tmp_path / "kept", "auto", steps=4))
    resume(tmp_path / "kept")
    assert "photos         cached in host memory  (about 0.2 MiB" in capsys.readouterr().out
    assert_same(final_state(tmp_path / "kept"), final_state(tmp_path / "off"))
    (_, second) = read_starts(RunDirectory(tmp_path / "kept"))
    assert second["choices"]["cache"]["value"] == "ram"


@pytest.mark.parametrize(
    ("repeats", "largest_view", "place", "reason"),
    [
        (False, 64, "off", "no photo is used twice"),
        (True, 64, "ram", "about 0.2 MiB decoded"),
        (True, 32, "off", "most are so large that workers decode them at reduced size"),
    ],
)
def test_what_would_not_help_is_left_alone(
    repeats: bool, largest_view: int, place: str, reason: str
) -> None:
    data = DataConfig(scenes_count=20, scenes_size=64)
    specs = ViewsConfig(global_size=largest_view, local_count=0).specs()
    choice = choose_cache(
        data, open_source(data), ALONE, specs=specs, renders_on_gpu=False, repeats=repeats
    )
    assert choice.value == place
    assert choice.reason.startswith(reason)
