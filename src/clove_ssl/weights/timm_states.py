"""Fit the state of a complete timm network to its ``features_only`` form.

That form has no classifier, writes some dots of names as underscores, and ends
behind the chosen stage. A tensor that it lacks must have a name of the complete
network (of any shape, since numbers of classes differ), or the file is of another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from clove_ssl.backbones.build import TIMM_PREFIX, Backbone, import_timm
from clove_ssl.weights.dialects import Stripped


def fit_timm_state(state: Mapping[str, Tensor], backbone: Backbone) -> Stripped:
    """The tensors of the backbone under its own names; what belongs to no network stays in."""
    own = {_flat(name): name for name in backbone.body.state_dict()}
    complete = _complete_names(backbone.name)
    tensors: dict[str, Tensor] = {}
    dropped: Counter[str] = Counter()
    for name, tensor in state.items():
        if _flat(name) in own:
            tensors[own[_flat(name)]] = tensor
        elif name in complete:
            dropped[name.partition(".")[0]] += 1
        else:
            tensors[name] = tensor
    return Stripped(tensors, dict(dropped))


def _flat(name: str) -> str:
    return name.replace(".", "_")


def _complete_names(name: str) -> set[str]:
    timm: Any = import_timm()
    with torch.device("meta"):  # names alone: no memory, no random numbers
        return {*timm.create_model(name.removeprefix(TIMM_PREFIX)).state_dict()}
