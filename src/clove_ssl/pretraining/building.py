"""The method of a run: built around its backbone, placed on its device, or restored later."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import torch
from torch import nn

from clove_ssl.backbones.build import build_backbone
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.console import Console
from clove_ssl.errors import UserError
from clove_ssl.layers.normalization import synchronize_norms
from clove_ssl.methods.base import Method
from clove_ssl.runs.directory import RunDirectory, newest_intact
from clove_ssl.training.checkpoints import fitting, load_state
from clove_ssl.training.processes import Process
from clove_ssl.weights.load import load_weights
from clove_ssl.weights.origins import imagenet_file, is_imagenet

M = TypeVar("M", bound=nn.Module)


def build_method(config: PretrainConfig, process: Process) -> Method:
    """The method as a run begins with it, on the device of this process."""
    backbone = build_backbone(config.backbone)
    weights = config.backbone.weights
    if weights is not None:
        if is_imagenet(weights):
            with Console(speaks=process.is_first).working("Fetching ImageNet weights"):
                weights = imagenet_file(config.backbone.name)
        load_weights(backbone, weights)
    method = config.method.build(backbone)
    # The teacher is part of the method by now, so its norms are synchronized, too.
    if process.world_size > 1 and config.sync_norm:
        synchronize_norms(method, process.device.type)
    return placed(method, process.device)


def placed(network: M, device: torch.device) -> M:
    """A method, or any network, on a device, laid out as kernels there want it."""
    if device.type == "cuda":
        # The layout that tensor cores want; without it every convolution would turn its maps
        # around.
        network = network.to(memory_format=torch.channels_last)
    return network.to(device)


def unrestored_method(config: PretrainConfig) -> Method:
    """The method of a run with random weights."""
    return config.method.build(build_backbone(replace(config.backbone, weights=None)))


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
