"""ResNets in the form of the first Caffe models: MSRA's R-50.pkl and detectors made from it.

Their batch norms are folded to a scale and a shift, their images are BGR from 0
to 255 minus a mean, and the first convolution of a block strides (a network that
we call ``..._caffe``). Means are those of ImageNet, so images as we normalise
them differ only by a factor per channel and the order of channels, and both go
into the first convolution without any loss.
"""

from __future__ import annotations

import torch

from clove_ssl.backbones.dialects import State
from clove_ssl.views.batch import IMAGENET_STD

_EPSILON = 1e-5  # of batch norm; the variance makes up for it, so that nothing is divided


def is_folded(state: State) -> bool:
    """Whether no batch norm of a ResNet has statistics of its own, though it was trained."""
    scales = [state[name] for name in state if _is_norm_scale(name)]
    means = [state[name] for name in state if name.endswith("running_mean")]
    untrained = all(bool(((scale == 1) | (scale == 0)).all()) for scale in scales)
    return bool(scales) and not untrained and not any(bool(mean.any()) for mean in means)


def unfold(state: State) -> State:
    """The same network for RGB images of unit deviation, with neutral batch-norm statistics."""
    unfolded = dict(state)
    for name in [name for name in state if _is_norm_scale(name)]:
        norm = name.removesuffix("weight")
        unfolded[norm + "running_mean"] = torch.zeros_like(state[name])
        unfolded[norm + "running_var"] = torch.full_like(state[name], 1 - _EPSILON)
    deviation = 255 * torch.tensor(IMAGENET_STD).reshape(1, 3, 1, 1)
    unfolded["conv1.weight"] = state["conv1.weight"].flip(1) * deviation  # BGR to RGB
    return unfolded


def _is_norm_scale(name: str) -> bool:
    words = name.split(".")
    is_norm = any(word.startswith("bn") for word in words) or "downsample.1" in name
    return is_norm and words[-1] == "weight"
