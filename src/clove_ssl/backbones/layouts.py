"""How other programs name the tensors of their checkpoints, as a table.

A layout is recognised by content alone: the backbone's first convolution must
stand behind the layout's prefix, and for programs that share a prefix a second
name tells them apart. Wrappers that stand before *every* name (``module.`` of
DDP, ``_orig_mod.`` of torch.compile) are taken off first, so the table does
without them.

Nothing here reads files; a state is a mapping from names to tensors.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from clove_ssl.errors import UserError

State = dict[str, Tensor]


@dataclass(frozen=True)
class Layout:
    """The names one program gives to its tensors."""

    method: str
    prefix: str  # stands before the names of the backbone that is to be transferred
    evidence: str = ""  # how some name must begin for this layout to apply
    heads: tuple[str, ...] = ("fc.",)  # behind the prefix, but no part of the backbone
    names: Literal["torchvision", "detectron2"] = "torchvision"
    output_stride: Literal[16, 32] = 32


@dataclass(frozen=True)
class Stripped:
    """The backbone of a checkpoint under torchvision's names, and what was left out."""

    tensors: State
    dropped: dict[str, int] = field(default_factory=dict)  # how many, by where they stood


_DETECTRON2_HEADS = ("stem.fc.", "backbone.fpn", "fpn", "fc.")

# The first layout that applies wins, so what needs evidence stands before what does not.
LAYOUTS = (
    # SlotCon's authors transfer the teacher.
    Layout("SlotCon", "encoder_k.", evidence="grouping_k."),
    Layout("CP2", "encoder_q.backbone.", output_stride=16),
    Layout("CP2 (backbone and head)", "backbone.", evidence="decode_head.", output_stride=16),
    Layout("DenseCL", "backbone.", evidence="queue2"),
    Layout("MoCo v2 (OpenMMLab)", "backbone.", evidence="queue"),
    Layout("BYOL (OpenMMLab)", "backbone.", evidence="target_net."),
    Layout("VICRegL", "backbone.", evidence="maps_projector."),
    Layout("Detectron2", "backbone.bottom_up.", heads=_DETECTRON2_HEADS, names="detectron2"),
    Layout("a backbone with heads", "backbone."),
    Layout("SetSim", "encoder_q.0."),
    Layout("ReSim", "encoder_q.", evidence="encoder_q.fpn_", heads=("fc.", "fpn_")),
    Layout("MoCo v2", "encoder_q."),
    Layout("CLoVE", "encoder.", evidence="self_attn."),
    Layout("PixPro", "encoder.", evidence="value_transform."),
    Layout("an encoder with heads", "encoder."),
    Layout("SlotCon (teacher alone)", "encoder_k."),
    Layout("Detectron2 (ReSim, MoCo)", "", heads=_DETECTRON2_HEADS, names="detectron2"),
    Layout("DetCo", "", evidence="mlp", heads=("fc.", "mlp", "neck.")),
    Layout("a bare backbone", "", heads=("fc.", "classifier.", "neck.")),
)

_FIRST_CONVOLUTION = {
    "torchvision": ("conv1.weight", "features.0.0.weight", "stem.0.weight"),
    "detectron2": ("stem.conv1.weight",),
}
_WRAPPERS = ("module.", "_orig_mod.")


def unwrap(state: Mapping[str, Tensor]) -> State:
    """Take off the wrappers that all names share."""
    unwrapped = dict(state)
    for wrapper in _WRAPPERS * 2:  # they occur in either order
        if unwrapped and all(name.startswith(wrapper) for name in unwrapped):
            unwrapped = {name.removeprefix(wrapper): unwrapped[name] for name in unwrapped}
    return unwrapped


def recognise(state: Mapping[str, Tensor]) -> Layout | None:
    """The layout of an unwrapped state, or ``None`` when the table has none for it."""
    return next((layout for layout in LAYOUTS if _applies(layout, state)), None)


def strip(state: Mapping[str, Tensor], layout: Layout) -> Stripped:
    """Keep the backbone, under torchvision's names; count everything else."""
    tensors: State = {}
    dropped: Counter[str] = Counter()
    for name, tensor in state.items():
        inner = name.removeprefix(layout.prefix)
        head = next((head for head in layout.heads if inner.startswith(head)), None)
        if not name.startswith(layout.prefix):
            dropped[name.partition(".")[0]] += 1
        elif head is not None:
            dropped[(layout.prefix + head).rstrip("._")] += 1
        else:
            tensors[_torchvision_name(inner, layout)] = tensor
    return Stripped(tensors, dict(dropped))


def unknown_layout(state: Mapping[str, Tensor], origin: str) -> UserError:
    """The error for a state that no layout fits."""
    shown = ", ".join(list(state)[:3]) or "none"
    methods = ", ".join(layout.method for layout in LAYOUTS)
    return UserError(
        f"{origin} holds {len(state)} tensors (the first ones: {shown}), but no backbone where a "
        f"known program would put it. Known: {methods}. Save the backbone's own state dict under "
        "torchvision's names and load that."
    )


def torchvision_name(name: str) -> str:
    """Detectron2's name of a ResNet tensor in torchvision's words.

    >>> torchvision_name("res4.0.shortcut.norm.weight")
    'layer3.0.downsample.1.weight'
    """
    name = re.sub(r"^stem\.conv1\.norm\.", "bn1.", name)
    name = re.sub(r"^stem\.conv1\.", "conv1.", name)
    name = re.sub(r"^res(\d)\.", lambda match: f"layer{int(match[1]) - 1}.", name)
    name = re.sub(r"\.conv(\d)\.norm\.", r".bn\1.", name)
    name = name.replace(".shortcut.norm.", ".downsample.1.")
    return name.replace(".shortcut.", ".downsample.0.")


def _applies(layout: Layout, state: Mapping[str, Tensor]) -> bool:
    has_backbone = any(layout.prefix + name in state for name in _FIRST_CONVOLUTION[layout.names])
    has_evidence = any(name.startswith(layout.evidence) for name in state)
    return has_backbone and has_evidence


def _torchvision_name(name: str, layout: Layout) -> str:
    return torchvision_name(name) if layout.names == "detectron2" else name
