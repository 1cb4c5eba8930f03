"""Small runs of every kind that writes, and what must be the same whatever happened on the way."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from builders.files.odd_files import encode, photo
from builders.runs.interruptions import figures, final_state
from builders.runs.killing import weights_hash
from builders.runs.tiny_finetuning import tiny_finetuning
from builders.runs.tiny_runs import tiny_config
from builders.runs.tiny_studies import saved, tiny_study

from clove_ssl.atomic import SUFFIX
from clove_ssl.config import files
from clove_ssl.config.pretraining import DataConfig

IMAGES = 12


@dataclass(frozen=True)
class Job:
    """A command that writes a folder."""

    name: str
    arguments: Callable[[Path, Path], list[str]]  # from a folder for inputs and the --out
    resumed: Callable[[Path, Path], list[str]]
    result: Callable[[Path], Any]  # what an undisturbed run has, too


def _pretraining(inputs: Path, out: Path) -> list[str]:
    photos = inputs / "photos"
    if not photos.is_dir():
        photos.mkdir()
        for number in range(IMAGES):
            (photos / f"{number}.png").write_bytes(encode(photo(40, 48 + number), "PNG"))
    data = DataConfig(source=str(photos), workers=1, max_bad=1.0)
    files.save(tiny_config(out, steps=10, data=data), inputs / "pretraining.yaml")
    return ["pretrain", "--config", str(inputs / "pretraining.yaml"), "--out", str(out)]


def _finetuning(inputs: Path, out: Path) -> list[str]:
    config = tiny_finetuning("voc-semantic", out, iterations=6, checkpoint_every=2)
    config = replace(config, data=replace(config.data, workers=1))
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


JOBS = {
    job.name: job
    for job in (
        Job("pre-training", _pretraining, _resume, _pretraining_result),
        Job("fine-tuning", _finetuning, _resume, _finetuning_result),
        Job("study", _study, _study, _study_result),
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
