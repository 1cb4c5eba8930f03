"""ResNets in the form of the first Caffe models: MSRA's R-50.pkl and detectors made from it.

Their batch norms are folded to a scale and a shift, their images are BGR from 0
to 255 minus a mean, and the first convolution of a block strides (a network that
we call ``..._caffe``). Means are those of ImageNet, so images as we normalise
them differ only by a factor per channel and the order of channels, and both go
into the first convolution without any loss.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch

from clove_ssl.config.bases import Branch
from clove_ssl.views.batch import IMAGENET_STD
from clove_ssl.weights.architectures import name_by_order
from clove_ssl.weights.checkpoint_files import Content
from clove_ssl.weights.dialects import State, find_dialect, strip
from clove_ssl.weights.layouts import (
    LICENCES,
    OWN,
    Found,
    licence,
    method_of,
    recognise,
    unwrap,
)

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


_FOLDED = (
    "folded batch norms got neutral statistics",
    "BGR input from 0 to 255 became normalised RGB in the first convolution",
)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the user says about a checkpoint that does not tell by itself."""

    method: str = ""
    branch: Branch | None = None


@dataclass(frozen=True)
class Extracted:
    """A backbone's tensors under the names of its network, and where they are from."""

    tensors: State
    dropped: dict[str, int] = field(default_factory=dict)
    title: str = ""
    method: str = ""
    branch: str = ""
    licence: str = ""
    notes: tuple[str, ...] = ()
    own: bool = False  # written by this library, so names are those of any network
    caffe: bool = False  # of a network whose first convolutions stride
    output_stride: Literal[16, 32] = 32


def extract(content: Content, wanted: Wanted) -> Extracted | None:
    """The backbone of a checkpoint in any known layout, or ``None`` when none is known."""
    for key, state in content.states.items():
        unwrapped = unwrap(state)
        found = recognise(unwrapped, method=wanted.method, branch=wanted.branch)
        if found is not None:
            author = "" if found.layout.method else method_of(content.author)
            return _take(unwrapped, found, wanted.method or author)
        if key == "online_backbone":
            return _by_order(state)
    return None


def _take(state: State, found: Found, named: str) -> Extracted:
    """The backbone that was found, of the method that the user or the file names."""
    layout, own = found.layout, found.layout.method == OWN
    stripped = strip(state, found.prefix, own=own)
    dialect = None if own else find_dialect(state, found.prefix)
    foldable = dialect is not None and dialect.library in ("caffe2", "detectron2")
    folded = foldable and is_folded(stripped.tensors)
    return Extracted(
        unfold(stripped.tensors) if folded else stripped.tensors,
        stripped.dropped,
        title=layout.title,
        method=named or layout.method,
        branch=found.branch if layout.teacher else "",
        licence=licence(layout, named),
        notes=_FOLDED if folded else (),
        own=own,
        caffe=folded,
        output_stride=layout.output_stride,
    )


def _by_order(state: State) -> Extracted | None:
    """BYOL by yaox12, whose own converter goes by the order of tensors."""
    named = name_by_order(state)
    if named is None:
        return None
    heads = {"fc": len(state) - len(named)} if len(state) > len(named) else {}
    return Extracted(
        named,
        heads,
        title="BYOL (yaox12, by order)",
        method="byol",
        licence=LICENCES["byol"],
        notes=("names were given by order",),
    )
