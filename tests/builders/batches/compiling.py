"""Small steps to compile, and what torch's compiler has been told."""

from __future__ import annotations

from pathlib import Path

import torch
import torch._functorch.config
from builders.runs.method_runs import method_run

from clove_ssl.backbones.build import build_backbone
from clove_ssl.methods.base import Method
from clove_ssl.pretraining.synthetic import synthetic_batch
from clove_ssl.views.batch import ViewBatch


def method_and_batch(name: str, folder: Path) -> tuple[Method, ViewBatch]:
    """A small method on a CPU, and what one of its steps gets."""
    config = method_run(folder, name)
    config_method = config.method.for_classes(2) if config.method.needs_labels else config.method
    torch.manual_seed(0)
    method = config_method.build(build_backbone(config.backbone)).train()
    cpu = torch.device("cpu")
    return method, synthetic_batch(method.views(), 4, device=cpu, dtype=torch.float32)


def activation_memory_in_use() -> float:
    """The share of activations that graphs made now would keep."""
    return float(torch._functorch.config.activation_memory_budget)
