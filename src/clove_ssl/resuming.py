"""Continue a run, whatever kind it is."""

from __future__ import annotations

from pathlib import Path

from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.finetuning import seeds as finetuning
from clove_ssl.finetuning.run import FinetuneResult
from clove_ssl.pretraining import run as pretraining
from clove_ssl.pretraining.run import PretrainResult
from clove_ssl.runs.directory import find, read_config


def resume(path: str | Path, *, micro_batch: int | None = None) -> PretrainResult | FinetuneResult:
    """Continue a run from its last good checkpoint.

    Args:
        path: The run directory.
        micro_batch: Images per forward pass and process, where another number of processes
            needs another one than the run was started with.
    """
    if isinstance(read_config(find(Path(path))), FinetuneConfig):
        return finetuning.resume(path, micro_batch=micro_batch)
    return pretraining.resume(path, micro_batch=micro_batch)
