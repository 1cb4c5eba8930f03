"""Which parts of a detector are trained, and with what weight decay."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torchvision.ops import FrozenBatchNorm2d

from clove_ssl.backbones.build import Backbone
from clove_ssl.config.detection import STAGE_COUNT
from clove_ssl.errors import UserError

# The parts of the torchvision networks that come before the first residual stage.
_STEMS = frozenset({"conv1", "bn1", "relu", "maxpool", "stem", "features.0"})

_NORMS = (_BatchNorm, _InstanceNorm, nn.GroupNorm, nn.LayerNorm, nn.LocalResponseNorm)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Groups for an optimizer: parameters of norms do not decay, biases do like weights."""
    norms: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for module in model.modules():
        own = [each for each in module.parameters(recurse=False) if each.requires_grad]
        (norms if isinstance(module, _NORMS) else others).extend(own)
    groups = [
        {"params": others, "weight_decay": weight_decay},
        {"params": norms, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def freeze_stages(backbone: Backbone, count: int) -> None:
    """Stop training the first ``count`` of stem, c2, c3, c4 and c5, and fix their norms."""
    if count == 0:
        return
    if not all(backbone.parts.values()):
        raise UserError(
            f"frozen_stages is {count}, but {backbone.name} does not come apart into stages. "
            "Give 0, or take a torchvision backbone such as resnet50."
        )
    stages = list(backbone.parts.values())
    stem = [path for path in stages[0] if path in _STEMS]
    rest = [path for path in stages[0] if path not in _STEMS]
    for paths in [stem, rest, *stages[1:]][: min(count, STAGE_COUNT)]:
        for path in paths:
            part = freeze_norms(backbone.body.get_submodule(path))
            backbone.body.set_submodule(path, part.requires_grad_(False))


def freeze_norms(module: nn.Module) -> nn.Module:
    """Turn every batch norm in ``module`` into a fixed affine map with its running statistics.

    Use the returned module: a batch norm that *is* the module cannot be changed in place.
    """
    if isinstance(module, _BatchNorm):
        return _frozen(module)
    for name, child in module.named_children():
        setattr(module, name, freeze_norms(child))
    return module


def _frozen(norm: _BatchNorm) -> nn.Module:
    if type(norm) is not nn.BatchNorm2d or not norm.affine or not norm.track_running_stats:
        raise UserError(
            f"{type(norm).__name__} is not a plain batch norm with statistics, so it cannot be "
            "frozen. Give --task.detector.backbone-norm batch --task.detector.frozen-stages 0, or "
            "choose another backbone."
        )
    frozen = FrozenBatchNorm2d(norm.num_features, eps=norm.eps)
    state = {
        name: value for name, value in norm.state_dict().items() if name in frozen.state_dict()
    }
    frozen.load_state_dict(state)
    placed: nn.Module = frozen.to(norm.weight.device)
    return placed
