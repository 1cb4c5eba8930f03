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
    from clove_ssl.backbones.weights import load_backbone
    from clove_ssl.config.finetuning import FinetuneConfig, protocol
    from clove_ssl.config.pretraining import PretrainConfig
    from clove_ssl.config.recipes import recipe
    from clove_ssl.engine.embedding import embed
    from clove_ssl.engine.finetuned import load_finetuned
    from clove_ssl.engine.finetuning import finetune
    from clove_ssl.engine.pretraining import pretrain
    from clove_ssl.engine.probes import dense_probe
    from clove_ssl.engine.resuming import resume
    from clove_ssl.engine.scoring import score_run
    from clove_ssl.errors import UserError
    from clove_ssl.modules.attention import NormalizedSelfAttention
    from clove_ssl.views.geometry import match_cells

__all__ = [
    "FinetuneConfig",
    "NormalizedSelfAttention",
    "PretrainConfig",
    "UserError",
    "dense_probe",
    "embed",
    "finetune",
    "load_backbone",
    "load_finetuned",
    "losses",
    "match_cells",
    "optimizers",
    "pretrain",
    "protocol",
    "recipe",
    "resume",
    "score_run",
]

_HOMES = {
    "FinetuneConfig": "clove_ssl.config.finetuning",
    "NormalizedSelfAttention": "clove_ssl.modules.attention",
    "PretrainConfig": "clove_ssl.config.pretraining",
    "UserError": "clove_ssl.errors",
    "dense_probe": "clove_ssl.engine.probes",
    "embed": "clove_ssl.engine.embedding",
    "finetune": "clove_ssl.engine.finetuning",
    "load_backbone": "clove_ssl.backbones.weights",
    "load_finetuned": "clove_ssl.engine.finetuned",
    "match_cells": "clove_ssl.views.geometry",
    "pretrain": "clove_ssl.engine.pretraining",
    "protocol": "clove_ssl.config.finetuning",
    "recipe": "clove_ssl.config.recipes",
    "resume": "clove_ssl.engine.resuming",
    "score_run": "clove_ssl.engine.scoring",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in __all__:
        return import_module(f"clove_ssl.{name}")
    raise AttributeError(f"module 'clove_ssl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
