"""Turn the names that other libraries give to a backbone's tensors into torchvision's.

A dialect is recognised by one name that only it has. What stands behind the prefix
of a backbone but is no part of it (classifiers, feature pyramids) is known by its
first word and left out; everything else must fit the network exactly.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from clove_ssl.weights.convnext_names import torchvision_name_of_authors, torchvision_name_of_timm
from clove_ssl.weights.detectron2_names import torchvision_name, torchvision_name_of_caffe2
from clove_ssl.weights.transformers_names import torchvision_name_of_transformers

State = dict[str, Tensor]

_CHILDREN = {"0": "conv1", "1": "bn1", "4": "layer1", "5": "layer2", "6": "layer3", "7": "layer4"}


@dataclass(frozen=True)
class Dialect:
    """The names one library gives to the tensors of a backbone."""

    library: str
    marker: str  # a name that no other dialect has
    to_torchvision: Callable[[str], str]


@dataclass(frozen=True)
class Stripped:
    """The backbone of a checkpoint under torchvision's names, and what was left out."""

    tensors: State
    dropped: dict[str, int] = field(default_factory=dict)  # how many, by where they stood


def _unchanged(name: str) -> str:
    return name


def name_of_child(name: str) -> str:
    """The name of a tensor in a ``Sequential`` of a ResNet's children, in torchvision's words.

    >>> name_of_child("5.0.downsample.1.bias")
    'layer2.0.downsample.1.bias'
    """
    first, _, rest = name.partition(".")
    return f"{_CHILDREN.get(first, first)}.{rest}"


DIALECTS = (
    Dialect("torchvision", "conv1.weight", _unchanged),
    Dialect("torchvision", "features.0.0.weight", _unchanged),
    Dialect("torchvision", "trunk_output.block1.block1-0.proj.0.weight", _unchanged),
    Dialect("detectron2", "stem.conv1.weight", torchvision_name),
    Dialect("caffe2", "conv1_w", torchvision_name_of_caffe2),
    Dialect("children", "4.0.conv1.weight", name_of_child),
    Dialect("timm", "stages.0.blocks.0.conv_dw.weight", torchvision_name_of_timm),
    Dialect("timm", "stages_0.blocks.0.conv_dw.weight", torchvision_name_of_timm),
    Dialect(
        "transformers", "embedder.embedder.convolution.weight", torchvision_name_of_transformers
    ),
    Dialect("authors", "downsample_layers.0.0.weight", torchvision_name_of_authors),
)

_HEADS = (
    *("fc.", "classifier.", "head.", "norm.", "linear."),
    *("neck.", "mlp", "fpn", "norm_"),
    *("projection_head.", "prototypes."),  # SwAV
    *("stem.fc.", "backbone.fpn"),  # ReSim under Detectron2's names
    *("fc1000_", "pred_", "conv1_b"),  # Caffe2
)
_MOMENTUM = "_momentum"  # Caffe2's optimizer writes beside each tensor what it remembers of it
# With C4 detectors the last stage stands in the head, but is a stage of the backbone.
_C4_STAGE = ("roi_heads.res5.", "backbone.res5.")

_REASONS = {
    r"^(student|teacher)\.\w*head": "head; a task brings its own",
    r"fpn": "feature pyramid; a detector brings its own",
    r"queue|mask$": "memory of negatives",
    r"_k\b|target|teacher": "the teacher, which is not the branch taken",
    r"^(encoder_q|encoder|online_network|student)$": "the student, which is not the branch taken",
    r"preprocessor|pixel": "image statistics",
    _MOMENTUM: "state of the optimizer",
    r"roi_heads?|proposal_generator|rpn": "part of a detector",
    r"conv1_b": "bias before a batch norm, unused by Detectron2",
    r"proj|neck|head|mlp|predict|expand|fc|classifier|linear|pred|value|attn|attention|group|cent|"
    r"proto|norm|encoder_q\.1": "head; a task brings its own",
}


def find_dialect(state: Mapping[str, Tensor], prefix: str) -> Dialect | None:
    """The dialect of the backbone that stands behind ``prefix``, if there is one."""
    return next((each for each in DIALECTS if prefix + each.marker in state), None)


def strip(state: Mapping[str, Tensor], prefix: str, *, own: bool = False) -> Stripped:
    """Keep the backbone, under torchvision's names; count everything else.

    Args:
        state: Tensors by name.
        prefix: Stands before the names of the backbone.
        own: Names behind the prefix are those of the network already, whichever it is.
    """
    dialect = None if own else find_dialect(state, prefix)
    rename = dialect.to_torchvision if dialect else _unchanged
    tensors: State = {}
    dropped: Counter[str] = Counter()
    for name, tensor in _with_c4_stage(state, prefix).items():
        inner = name.removeprefix(prefix)
        head = None if own else next((head for head in _HEADS if inner.startswith(head)), None)
        if not name.startswith(prefix):
            dropped[_place(name, prefix)] += 1
        elif head is not None:
            dropped[(prefix + head).rstrip("._")] += 1
        elif name.endswith(_MOMENTUM):
            dropped[_MOMENTUM] += 1
        else:
            tensors[rename(inner)] = tensor
    return Stripped(_shaped(tensors), dict(dropped))


def why_dropped(place: str) -> str:
    """What stands at a place of a checkpoint, and why a backbone does without it."""
    found = (reason for pattern, reason in _REASONS.items() if re.search(pattern, place))
    return next(found, "outside the backbone")


def _place(name: str, prefix: str) -> str:
    """The first word of a name, or two where the first is also the backbone's."""
    words = name.split(".")
    shared = len(words) > 2 and prefix.startswith(words[0] + ".") and prefix.count(".") > 1
    return ".".join(words[: 1 + shared])


def _with_c4_stage(state: Mapping[str, Tensor], prefix: str) -> State:
    there, here = _C4_STAGE
    if prefix + "stem.conv1.weight" not in state or prefix != "backbone.":
        return dict(state)
    return {
        here + name.removeprefix(there) if name.startswith(there) else name: tensor
        for name, tensor in state.items()
    }


def _shaped(tensors: State) -> State:
    """Layer scales are vectors elsewhere and maps of one cell in torchvision: (C,) -> (C, 1, 1)."""
    return {
        name: tensor[:, None, None] if name.endswith("layer_scale") and tensor.ndim == 1 else tensor
        for name, tensor in tensors.items()
    }
