"""The whole method of a run, heads and teacher included, from a checkpoint."""

from __future__ import annotations

from dataclasses import replace

from clove_ssl.backbones.build import build_backbone
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.errors import UserError
from clove_ssl.methods.base import Method
from clove_ssl.runs.directory import RunDirectory, newest_intact
from clove_ssl.training.checkpoints import fitting, load_state


def restore_method(run: RunDirectory, config: PretrainConfig) -> tuple[Method, int]:
    """The method with the weights of the newest intact checkpoint, in eval mode, and its step."""
    checkpoint = newest_intact(run.checkpoints)
    if checkpoint is None:
        raise UserError(
            f"{run.path} has no intact checkpoint, and what was asked for is not in its export. "
            f"Type: clove resume {run.path}"
        )
    method = unrestored_method(config)
    with fitting(checkpoint.path):
        method.load_state_dict(load_state(checkpoint.path)["learner"])
    method.eval()
    return method, checkpoint.step


def unrestored_method(config: PretrainConfig) -> Method:
    """The method of a run with random weights."""
    return config.method.build(build_backbone(replace(config.backbone, weights=None)))
