"""A folder of broken and odd files trains, names every bad file, and loses no good one."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from builders.files.odd_files import write_odd_folder
from builders.runs.tiny_runs import tiny_config

from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.data.order import Draws, ImageOrder
from clove_ssl.data.reading import RenderedViews
from clove_ssl.data.sources import open_source
from clove_ssl.errors import UserError
from clove_ssl.pretraining import run as pretraining
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.provenance import unreadable_files


def odd_config(tmp_path: Path, **data: object) -> PretrainConfig:
    config = tiny_config(tmp_path / "run", steps=8)
    changed = replace(config.data, source=str(tmp_path / "odd"), **data)
    return replace(config, data=changed)


def test_every_bad_file_is_named_and_the_run_ends(tmp_path: Path) -> None:
    odd = write_odd_folder(tmp_path / "odd")
    result = pretraining.pretrain(odd_config(tmp_path, max_bad=0.9))  # 64 of 57 draws: all seen
    assert result.finished
    log = (tmp_path / "run" / "log.txt").read_text()
    unnamed = [name for name in odd.bad if f"cannot read {name}:" not in log]
    assert not unnamed
    wronged = [name for name in odd.good if f"cannot read {name}:" in log]
    assert not wronged
    (tmp_path / "run" / "log.txt").unlink()  # the names are kept as values, too
    assert unreadable_files(RunDirectory(tmp_path / "run")) == set(odd.bad)


def test_every_good_file_is_really_used(tmp_path: Path) -> None:
    odd = write_odd_folder(tmp_path / "odd")
    config = odd_config(tmp_path, max_bad=0.9)
    source = open_source(config.data)
    views = RenderedViews(source, config.method.view_specs(), config.data, seed=0)
    order = ImageOrder(len(source), seed=0).draws(0, len(source))
    failed: set[str] = set()
    for epoch, index in zip(*order, strict=True):
        bad = views[Draws(order.epochs[:1] * 0 + epoch, order.indices[:1] * 0 + index)].bad
        failed |= {file.name for file in bad}
    assert len(source) - len(failed) == len(odd.good)


def test_too_many_bad_files_stop_the_run_with_examples(tmp_path: Path) -> None:
    write_odd_folder(tmp_path / "odd")
    with pytest.raises(UserError, match=r"could not be read, more than the 10 that are allowed"):
        pretraining.pretrain(odd_config(tmp_path))


def test_a_folder_of_nothing_but_rubbish_stops_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.jpg").write_bytes(b"rubbish")
    with pytest.raises(UserError, match="5 of 5 files could not be read"):
        pretraining.pretrain(odd_config(tmp_path))


def test_a_bad_file_is_replaced_by_the_next_one_in_the_same_way_every_time(tmp_path: Path) -> None:
    write_odd_folder(tmp_path / "odd")
    first = pretraining.pretrain(odd_config(tmp_path, max_bad=0.9))
    shutil.rmtree(tmp_path / "run")
    again = pretraining.pretrain(odd_config(tmp_path, max_bad=0.9))
    assert first.metrics["loss"] == again.metrics["loss"]
    assert first.figures == first.metrics  # the old name
