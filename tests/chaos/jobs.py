"""Small runs of every kind that writes, and what must be the same whatever happened on the way."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from builders.files.odd_files import encode, photo
from builders.runs.interruptions import figures, final_state
from builders.runs.killing import weights_hash
from builders.runs.tiny_finetuning import tiny_finetuning
from builders.runs.tiny_runs import tiny_config
from builders.runs.tiny_studies import saved, tiny_study
from chaos.commands import Command

from clove_ssl.atomic import SUFFIX
from clove_ssl.config import files
from clove_ssl.config.pretraining import DataConfig

IMAGES = 12
PRETRAIN_STEPS = 10
FINETUNE_STEPS = 6


@dataclass(frozen=True)
class Job:
    """A command that writes a folder."""

    name: str
    arguments: Callable[[Path, Path], list[str]]  # from a folder for inputs and the --out
    resumed: Callable[[Path, Path], list[str]]
    result: Callable[[Path], Any]  # what an undisturbed run has, too
    steps: int = 0  # of training, in which there are workers; two processes can do them together


def _pretraining(inputs: Path, out: Path) -> list[str]:
    photos = inputs / "photos"
    if not photos.is_dir():
        photos.mkdir()
        for number in range(IMAGES):
            (photos / f"{number}.png").write_bytes(encode(photo(40, 48 + number), "PNG"))
    data = DataConfig(source=str(photos), workers=1, max_bad=1.0)
    files.save(tiny_config(out, steps=PRETRAIN_STEPS, data=data), inputs / "pretraining.yaml")
    return ["pretrain", "--config", str(inputs / "pretraining.yaml"), "--out", str(out)]


def _finetuning(inputs: Path, out: Path) -> list[str]:
    config = tiny_finetuning("voc-semantic", out, iterations=FINETUNE_STEPS, checkpoint_every=2)
    data = replace(config.data, workers=1)
    config = replace(config, architecture="timm:test_resnet", data=data)
    files.save(config, inputs / "finetuning.yaml")
    return ["finetune", "--config", str(inputs / "finetuning.yaml"), "--out", str(out)]


def _study(inputs: Path, out: Path) -> list[str]:
    return ["study", saved(tiny_study(), inputs), "--out", str(out)]


def _resume(inputs: Path, out: Path) -> list[str]:
    return ["resume", str(out)]


def _pretraining_result(out: Path) -> Any:
    return weights_hash(out), _digest(final_state(out)), figures(out)


def _finetuning_result(out: Path) -> Any:
    state = {key: final_state(out)[key] for key in ("learner", "step")}
    return _digest(state), figures(out), json.loads((out / "scores.json").read_text())


def _study_result(out: Path) -> Any:
    """The weights of all cells, and every figure of the study."""
    backbones = sorted(out.rglob("backbone.safetensors"))
    tables = {str(p.relative_to(out)): p.read_text() for p in sorted(out.rglob("scores.json"))}
    return [(str(p.relative_to(out)), weights_hash(p.parent.parent)) for p in backbones], tables


def finished(kind: str, inputs: Path) -> Path:
    """A copy of a finished run, ``pre-training`` or ``fine-tuning``, which is made once."""
    base, copy = inputs.parent / f"finished {kind}", inputs / "run"
    if not base.is_dir():
        place = inputs.parent / f"making {kind}"
        place.mkdir()
        command = Command(JOBS[kind].arguments(place, base), place / "said.txt")
        assert command.wait(), f"{kind} did not end"
        assert command.code == 0, (place / "said.txt").read_text()
    if not copy.is_dir():
        shutil.copytree(base, copy)
    return copy


def _verb(kind: str, *words: str) -> Callable[[Path, Path], list[str]]:
    """A command about a copy of a finished run; RUN, OUT and IN in ``words`` are filled in."""

    def arguments(inputs: Path, out: Path) -> list[str]:
        shutil.rmtree(out, ignore_errors=True)  # who writes folders wants new ones
        out.mkdir()
        places = {"RUN": str(finished(kind, inputs)), "OUT": str(out), "IN": str(_labelled(inputs))}
        return [_filled(word, places) for word in words]

    return arguments


def _filled(word: str, places: dict[str, str]) -> str:
    for name, place in places.items():
        word = word.replace(name, place)
    return word


def _labelled(inputs: Path) -> Path:
    """A few images with masks."""
    folder = inputs / "labelled"
    if not folder.is_dir():
        for part in ("images", "masks"):
            (folder / part).mkdir(parents=True)
        (folder / "classes.txt").write_text("background\nthing\n")
        for number in range(10):
            name = f"{number}.png"
            (folder / "images" / name).write_bytes(encode(photo(40, 48), "PNG"))
            mask = np.full((40, 48), number % 2, np.uint8)
            (folder / "masks" / name).write_bytes(encode(mask, "PNG"))
    return folder


def _written(out: Path) -> Any:
    """The content of every file of a folder that has one; pages only end as they should."""
    found = {}
    for path in sorted(out.rglob("*")):
        if path.is_file() and not path.name.endswith((".lock", SUFFIX)):
            data = path.read_bytes().replace(os.fsencode(out.parent), b"")
            is_page = path.suffix == ".html"
            found[str(path.relative_to(out))] = (
                data.rstrip().endswith(b"</html>") if is_page else hashlib.sha256(data).hexdigest()
            )
    assert found, "nothing was written"
    return found


def _in_run(*names: str) -> Callable[[Path], Any]:
    """Some files of the run beside ``out``, in which a command writes."""
    return lambda out: {name: (out.parent / "run" / name).read_bytes() for name in names}


def _probed(out: Path) -> Any:
    """Scores without the seconds that they took."""
    text = (out.parent / "run" / "probes.json").read_text().replace(str(out.parent), "")
    entries = json.loads(text)
    return [{k: v for k, v in entry.items() if "second" not in k} for entry in entries[-1:]]


_PRE, _FINE = "pre-training", "fine-tuning"
_VERBS: dict[str, tuple[Callable[[Path, Path], list[str]], Callable[[Path], Any]]] = {
    "probe": (_verb(_PRE, "probe", "RUN", "--data", "IN", "--size", "64"), _probed),
    "embed": (
        _verb(_PRE, "embed", "RUN", "--data", "IN/images", "--size", "64", "--out", "OUT/e.npz"),
        _written,
    ),
    "export": (_verb(_PRE, "export", "RUN", "--to", "timm", "--out", "OUT/weights"), _written),
    "import": (_verb(_PRE, "import", "RUN", "--out", "OUT/backbone.safetensors"), _written),
    "report": (_verb(_PRE, "report", "RUN", "--out", "OUT/report.html"), _written),
    "show": (_verb(_PRE, "show", "features", "RUN", "--out", "OUT/sheet.png"), _written),
    "predict": (_verb(_FINE, "predict", "RUN", "IN/images", "--out", "OUT/found"), _written),
    "evaluate": (_verb(_FINE, "evaluate", "RUN", "--out", "OUT/scored"), _written),
    "score": (_verb(_FINE, "score", "RUN"), _in_run("scores.json")),
    "data": (_verb(_FINE, "data", "IN", "--out", "OUT/sheets"), _written),
}

JOBS = {
    job.name: job
    for job in (
        Job(_PRE, _pretraining, _resume, _pretraining_result, PRETRAIN_STEPS),
        Job(_FINE, _finetuning, _resume, _finetuning_result, FINETUNE_STEPS),
        Job("study", _study, _study, _study_result),
        *(Job(name, start, start, result) for name, (start, result) in _VERBS.items()),
    )
}


def leftovers(out: Path, whole: Path) -> list[str]:
    """Files that an undisturbed run does not have, and temporary files.

    Which checkpoints are kept depends on where a run was stopped, so they are not compared.
    """
    return sorted(
        name
        for name in _names(out)
        if name.endswith(SUFFIX) or (name not in _names(whole) and "checkpoints/" not in name)
    )


def _names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def _digest(value: Any) -> str:
    """A hash of nested containers of tensors and plain values."""
    if isinstance(value, torch.Tensor):
        content = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        return hashlib.sha256(f"{value.dtype} {value.shape}".encode() + content).hexdigest()
    if isinstance(value, dict):
        return _digest(
            [(str(key), _digest(inner)) for key, inner in sorted(value.items(), key=str)]
        )
    if isinstance(value, list | tuple) and not all(isinstance(v, str) for v in value):
        return _digest([_digest(inner) for inner in value])
    return hashlib.sha256(repr(value).encode()).hexdigest()
