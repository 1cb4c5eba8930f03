"""The smallest studies that still have every kind of cell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from clove_ssl.config import files
from clove_ssl.study.config import StudyConfig
from clove_ssl.study.studies import smoke


def tiny_study(**changes: Any) -> StudyConfig:
    """``smoke`` with one seed of everything: two pre-trainings, two probes, two fine-tunings."""
    study = smoke()
    entries = tuple(replace(entry, seeds=(0,)) for entry in study.pretrainings)
    tasks = tuple(replace(entry, seeds=(0,)) for entry in study.finetunings)
    return replace(study, **{"pretrainings": entries, "finetunings": tasks, **changes})


def saved(study: StudyConfig, folder: Path) -> str:
    """The study as a file, for the command line."""
    path = folder / "study-file.yaml"
    files.save(study, path)
    return str(path)
