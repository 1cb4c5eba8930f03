"""Photos that stay on the GPU or in host memory: the same batches and runs, bit for bit."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from builders.files.odd_files import write_odd_folder
from builders.gpu_marks import NEEDS_GPU
from builders.runs.cached_feeds import assert_same_batches
from builders.runs.interruptions import assert_same, crash_after, final_state
from builders.runs.tiny_runs import RESNET18, tiny_config

from clove_ssl.backbones.build import build_backbone
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.data.sources import BadFiles, open_source
from clove_ssl.pretraining import run as pretraining
from clove_ssl.pretraining.choices import decide, decide_sizes
from clove_ssl.pretraining.feed import open_feed
from clove_ssl.pretraining.images import open_store
from clove_ssl.training.processes import Process
from clove_ssl.views.batch import ViewBatch

pytestmark = NEEDS_GPU


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    write_odd_folder(tmp_path / "odd")
    return tmp_path / "odd"


def config_for(out: Path, photos: Path, cache: str, **changes: object) -> PretrainConfig:
    config = tiny_config(out, backbone=RESNET18, device="cuda", **changes)
    data = replace(
        config.data, source=str(photos), render="gpu", workers=2, max_bad=0.9, cache=cache
    )
    return replace(config, data=data)


def batches(config: PretrainConfig, *, start_step: int) -> list[ViewBatch]:
    """All batches from a step on, as training gets them."""
    source, process = open_source(config.data), Process(0, 1, 0, 1, torch.device("cuda", 0))
    method = config.method.build(build_backbone(config.backbone))
    sizes = decide_sizes(config, process, images=len(source))
    choices = decide(config, process, sizes, method=method, source=source)
    assert choices.cache.value == config.data.cache
    others = len(mp.active_children())
    feed = open_feed(
        config,
        source,
        config.method.view_specs(),
        choices,
        process,
        bad_files=BadFiles(config.data, len(source)),
        store=open_store(choices.cache, len(source), process),
        steps=range(start_step, choices.plan.total_steps),
    )
    with closing(feed):
        taken = [feed.next() for _ in range(start_step, choices.plan.total_steps)]
        if choices.cache.value != "off":
            assert len(mp.active_children()) == others, "workers did not end, with nothing to read"
    return taken


@pytest.mark.parametrize("cache", ["gpu", "ram"])
@pytest.mark.parametrize("start_step", [0, 3])
def test_batches_are_those_without_it(
    tmp_path: Path, photos: Path, cache: str, start_step: int
) -> None:
    steps = 4 * -(-len(open_source(config_for(tmp_path, photos, "off").data)) // 8)
    ours, theirs = (
        batches(config_for(tmp_path, photos, each, steps=steps), start_step=start_step)
        for each in (cache, "off")
    )
    assert_same_batches(iter(ours), iter(theirs))


def test_a_run_is_the_run_without_it_even_if_resumed(
    tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 3 * -(-len(open_source(config_for(tmp_path, photos, "off").data)) // 8)
    pretraining.pretrain(config_for(tmp_path / "off", photos, "off", steps=steps))
    pretraining.pretrain(config_for(tmp_path / "gpu", photos, "gpu", steps=steps))
    broken = config_for(tmp_path / "broken", photos, "gpu", steps=steps)
    crash_after(steps // 2, monkeypatch, broken)
    pretraining.resume(tmp_path / "broken")
    for run in ("gpu", "broken"):
        assert_same(final_state(tmp_path / run), final_state(tmp_path / "off"))
