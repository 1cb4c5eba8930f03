"""Self-supervised pre-training of convolutional backbones for dense prediction.

The public names are loaded when they are first used, so that importing the
package, or asking the command line for help, does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from clove_ssl import losses, optimizers
    from clove_ssl.api import export, label_curve, pretrain, probe, report, show
    from clove_ssl.config.finetuning import FinetuneConfig, protocol
    from clove_ssl.config.pretraining import PretrainConfig
    from clove_ssl.errors import UserError
    from clove_ssl.finetuning.finetuned import load_finetuned
    from clove_ssl.finetuning.score import score_run
    from clove_ssl.finetuning.seeds import finetune
    from clove_ssl.methods.clove.attention import NormalizedSelfAttention
    from clove_ssl.methods.recipes import recipe
    from clove_ssl.probes.dense import dense_probe
    from clove_ssl.probes.embed import embed
    from clove_ssl.views.geometry import match_cells
    from clove_ssl.weights.load import load_backbone
    from clove_ssl.whole_runs import resume

__all__ = [
    "FinetuneConfig",
    "NormalizedSelfAttention",
    "PretrainConfig",
    "UserError",
    "dense_probe",
    "embed",
    "evaluate",
    "export",
    "finetune",
    "label_curve",
    "load_backbone",
    "load_finetuned",
    "losses",
    "match_cells",
    "optimizers",
    "predict",
    "pretrain",
    "probe",
    "protocol",
    "recipe",
    "report",
    "resume",
    "score_run",
    "show",
]

_HOMES = {
    "FinetuneConfig": "clove_ssl.config.finetuning",
    "NormalizedSelfAttention": "clove_ssl.methods.clove.attention",
    "PretrainConfig": "clove_ssl.config.pretraining",
    "UserError": "clove_ssl.errors",
    "dense_probe": "clove_ssl.probes.dense",
    "embed": "clove_ssl.probes.embed",
    "evaluate": "clove_ssl.api",
    "export": "clove_ssl.api",
    "finetune": "clove_ssl.finetuning.seeds",
    "label_curve": "clove_ssl.api",
    "load_backbone": "clove_ssl.weights.load",
    "load_finetuned": "clove_ssl.finetuning.finetuned",
    "match_cells": "clove_ssl.views.geometry",
    "predict": "clove_ssl.api",
    "pretrain": "clove_ssl.api",
    "probe": "clove_ssl.api",
    "protocol": "clove_ssl.config.finetuning",
    "recipe": "clove_ssl.methods.recipes",
    "report": "clove_ssl.api",
    "resume": "clove_ssl.whole_runs",
    "score_run": "clove_ssl.finetuning.score",
    "show": "clove_ssl.api",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in __all__:
        return import_module(f"clove_ssl.{name}")
    raise AttributeError(f"module 'clove_ssl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
