"""DensePose with two processes equals DensePose with one, also where one has no labels."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from references.interruptions import final_state
from references.tiny_densepose import scenes, tiny_densepose_run

from clove_ssl.config.finetuning import FinetuneConfig, LabelledDataConfig
from clove_ssl.engine import finetuning
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.metrics import read_metrics


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def work(rank: int, config: FinetuneConfig, port: int) -> None:
    """What torchrun does for a process."""
    torch.set_num_threads(1)
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in {**place, **meeting}.items()})
    finetuning.finetune(config)


def rarely_labelled(folder: Path) -> LabelledDataConfig:
    """Figures of which one in twelve points survives, so that regions often have none."""
    scenes(folder)
    labels = folder / "annotations/densepose_train.json"
    content = json.loads(labels.read_text())
    seen: set[int] = set()
    for entry in content["annotations"]:
        if entry["image_id"] in seen:  # one labelled person per image
            for name in [name for name in entry if name.startswith("dp_")]:
                del entry[name]
        if "dp_x" in entry:
            seen.add(entry["image_id"])
            for name in ("dp_x", "dp_y", "dp_I", "dp_U", "dp_V"):
                entry[name] = entry[name][::12] if len(seen) % 2 else []
            if len(seen) % 2 == 0:
                entry["dp_masks"] = []
    labels.write_text(json.dumps(content))
    images = folder / "images/train"
    return LabelledDataConfig(
        train_annotations=labels,
        train_images=images,
        test_annotations=labels,
        test_images=images,
        workers=0,
    )


@pytest.mark.parametrize("rare", [False, True])
def test_two_processes_equal_one(tmp_path: Path, rare: bool) -> None:
    config = tiny_densepose_run(tmp_path / "one", batch_size=2 if rare else 4)
    if rare:
        task = replace(config.task, mirror=False, scores=("segm",))
        config = replace(config, data=rarely_labelled(tmp_path / "data"), task=task)
    finetuning.finetune(config)
    together = replace(config, out=tmp_path / "two")
    mp.start_processes(work, (together, free_port()), nprocs=2, start_method="fork")
    one, two = (RunDirectory(tmp_path / name) for name in ("one", "two"))
    for mine, theirs in zip(read_metrics(one), read_metrics(two), strict=True):
        terms = [name for name in mine if name.startswith("loss")]
        assert [theirs[name] for name in terms] == pytest.approx(
            [mine[name] for name in terms], rel=1e-4, abs=1e-7
        )
    ours, others = (final_state(run.path)["learner"] for run in (one, two))
    assert ours.keys() == others.keys()
    for name, value in ours.items():
        torch.testing.assert_close(others[name], value, rtol=1e-3, atol=5e-5, msg=name)
