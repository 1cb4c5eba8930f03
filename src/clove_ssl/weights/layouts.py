"""How other programs name the tensors of their checkpoints, as a table.

A layout is recognised by content alone: a backbone must stand behind one of the
layout's prefixes, and for programs that share a prefix a second name tells them
apart. Wrappers that stand before *every* name (``module.`` of DDP, ``_orig_mod.``
of torch.compile) are taken off first, so the table does without them. Behind the
prefix any dialect may follow, see ``dialects.py``.

Nothing here reads files; a state is a mapping from names to tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from clove_ssl.config.bases import Branch
from clove_ssl.errors import UserError, unknown_name
from clove_ssl.weights.dialects import State, find_dialect

OWN = "clove-ssl"


@dataclass(frozen=True)
class Layout:
    """Where one program keeps the backbones of its student and its teacher."""

    title: str  # how reports call it
    method: str  # as in ``--method``; empty when several programs share the layout
    student: str  # stands before the names of the backbone
    teacher: tuple[str, ...] = ()  # the same for the slow copy; the first that fits counts
    transfers: Branch | Literal["ask"] = "student"  # the branch that the authors hand out
    evidence: tuple[str, ...] = ()  # some name must begin with one of these
    output_stride: Literal[16, 32] = 32
    twins: str = ""  # licences of other files that look the same


@dataclass(frozen=True)
class Found:
    """A layout that applies to a state, and where the chosen backbone stands in it."""

    layout: Layout
    prefix: str
    branch: Branch


_MM_TEACHER = ("encoder_k.0.", "encoder_k.module.0.")
_BYOL_TARGET = ("target_net.0.", "target_net.module.0.")

# The first layout that applies wins, so what needs evidence stands before what does not.
LAYOUTS = (
    Layout(
        "clove-ssl (SlotCon)",
        OWN,
        "encoder.backbone.body.",
        teacher=("teacher.module.backbone.body.",),
        transfers="teacher",
        evidence=("encoder.prototypes",),
    ),
    Layout(
        "clove-ssl",
        OWN,
        "encoder.backbone.body.",
        teacher=("teacher.module.backbone.body.",),
        transfers="ask",
    ),
    Layout(
        "torchvision (detector)",
        "torchvision",
        "backbone.body.",
        evidence=("rpn.head.",),
        twins=" for torchvision's own",
    ),
    Layout("clove-ssl (plug-in)", OWN, "backbone.body."),
    Layout(
        "DINO", "dino", "student.backbone.", teacher=("teacher.backbone.",), transfers="teacher"
    ),
    Layout("a module around a backbone", "", "model.backbone."),
    Layout("a module around a network", "", "model."),
    Layout("transformers", "transformers", "resnet.", evidence=("resnet.embedder.",)),
    Layout("transformers (backbone)", "transformers", "", evidence=("embedder.embedder.",)),
    Layout(
        "SlotCon",
        "slotcon",
        "encoder_q.",
        teacher=("encoder_k.",),
        transfers="teacher",
        evidence=("grouping_k.", "grouping_q."),
    ),
    Layout(
        "CP2",
        "cp2",
        "encoder_q.backbone.",
        teacher=("encoder_k.backbone.",),
        output_stride=16,
    ),
    Layout(
        "CP2 (backbone and head)", "cp2", "backbone.", evidence=("decode_head.",), output_stride=16
    ),
    Layout("DenseCL", "densecl", "backbone.", teacher=_MM_TEACHER, evidence=("queue2",)),
    Layout("MoCo v2 (OpenMMLab)", "moco", "backbone.", teacher=_MM_TEACHER, evidence=("queue",)),
    Layout(
        "BYOL (OpenMMLab)", "byol", "backbone.", teacher=_BYOL_TARGET, evidence=("target_net.",)
    ),
    Layout("VICRegL", "vicregl", "backbone.", evidence=("maps_projector.",)),
    Layout("Detectron2 (detector)", "detectron2", "backbone.bottom_up."),
    Layout("Detectron2 (C4 detector)", "detectron2", "backbone.", evidence=("roi_heads.res5.",)),
    Layout(
        "MMDetection (detector)", "mmdetection", "backbone.", evidence=("rpn_head.", "roi_head.")
    ),
    Layout("a backbone with heads", "", "backbone."),
    Layout("SetSim", "setsim", "encoder_q.0.", teacher=("encoder_k.0.",)),
    Layout("ReSim", "resim", "encoder_q.", teacher=("encoder_k.",), evidence=("encoder_q.fpn_",)),
    Layout(
        "MoCo v2",
        "moco",
        "encoder_q.",
        teacher=("encoder_k.",),
        evidence=("queue", "encoder_q.fc."),
        twins="; ReSim-C4 files look the same, CC-BY-NC 4.0: if it is one, say --method resim",
    ),
    Layout(
        "BYOL (yaox12)",
        "byol",
        "online_network.encoder.",
        teacher=("target_network.encoder.",),
    ),
    Layout("CLoVE", "clove", "encoder.", teacher=("encoder_k.",), evidence=("self_attn.",)),
    Layout("PixPro", "pixpro", "encoder.", teacher=("encoder_k.",), evidence=("value_transform.",)),
    Layout("a student and a teacher", "", "encoder_q.", teacher=("encoder_k.",), transfers="ask"),
    Layout("an encoder with heads", "", "encoder.", teacher=("encoder_k.",)),
    Layout("SlotCon (teacher alone)", "slotcon", "", teacher=("encoder_k.",), transfers="teacher"),
    Layout("MSRA", "msra", "", evidence=("res_conv1_bn_s",)),
    Layout("Detectron2 (ReSim, MoCo)", "detectron2", "", evidence=("stem.conv1.",)),
    Layout("SwAV", "swav", "", evidence=("projection_head.", "prototypes.")),
    Layout("DetCo", "detco", "", evidence=("mlp",)),
    Layout("BYOL (yaox12, backbone)", "byol", "", evidence=("4.0.conv1.",)),
    Layout("a bare backbone", "", ""),
)

_BARE = "not told by the file: torchvision BSD-3-Clause, timm see its model page, DenseCL GPL-3.0, "
_BARE += "VICRegL CC-BY-NC 4.0 (not commercial), DetCo academic use; say whose it is with --method"
LICENCES = {
    "": _BARE,
    OWN: "not stated; whoever trained it decides",
    "byol": "MIT (yaox12) or Apache-2.0 (OpenMMLab)",
    "clove": "MIT",
    "cp2": "none stated by the authors",
    "densecl": "GPL-3.0 (authors' repository); Apache-2.0 for OpenMMLab's file",
    "detco": "BSD-2-Clause for academic use, by its README; no licence file",
    "detectron2": "Apache-2.0 for Detectron2's own; ReSim CC-BY-NC 4.0, MoCo see its repository",
    "dino": "Apache-2.0",
    "mmdetection": "Apache-2.0 for MMDetection's own",
    "moco": "MIT by its licence file, CC-BY-NC 4.0 by its README; OpenMMLab's file Apache-2.0",
    "msra": "Apache-2.0 (Detectron2's copy)",
    "pixpro": "MIT",
    "resim": "CC-BY-NC 4.0 (not commercial)",
    "setsim": "MIT by its README; no licence file",
    "slotcon": "Apache-2.0",
    "swav": "CC-BY-NC 4.0 (not commercial)",
    "timm": "see the model's page",
    "torchvision": "BSD-3-Clause",
    "transformers": "see the model's page",
    "vicregl": "CC-BY-NC 4.0 (not commercial)",
}
METHODS = sorted(name for name in LICENCES if name)
_WRAPPERS = ("module.", "_orig_mod.")


def unwrap(state: Mapping[str, Tensor]) -> State:
    """Take off the wrappers that all names share."""
    unwrapped = dict(state)
    for wrapper in _WRAPPERS * 2:  # they occur in either order
        if unwrapped and all(name.startswith(wrapper) for name in unwrapped):
            unwrapped = {name.removeprefix(wrapper): unwrapped[name] for name in unwrapped}
    return unwrapped


def recognise(
    state: Mapping[str, Tensor], *, method: str = "", branch: Branch | None = None
) -> Found | None:
    """The layout of an unwrapped state, or ``None`` when the table has none for it.

    Args:
        state: Tensors by name.
        method: Whose file it is, where the names of several programs would fit.
        branch: Student or teacher, where both are wanted; by default what the authors hand out.
    """
    if method and method not in METHODS:
        raise unknown_name("method of a checkpoint", method, METHODS)
    named = [layout for layout in LAYOUTS if method and layout.method == method]
    table = [replace(layout, evidence=()) for layout in named]
    generic = [layout for layout in LAYOUTS if not method or not layout.method]
    for layout in (*table, *generic):
        found = _apply(layout, state, branch)
        if found is not None:
            return found
    return None


def licence(layout: Layout, method: str = "") -> str:
    """What is known about the use of a layout's weights; ``method`` where somebody named it."""
    return LICENCES[method] if method else LICENCES[layout.method] + layout.twins


def method_of(author: str) -> str:
    """The method that the author's entry of a checkpoint names, if it is one we know."""
    named = author.strip().lower()
    return named if named in METHODS else ""


def unknown_layout(state: Mapping[str, Tensor], origin: str) -> UserError:
    """The error for a state that no layout fits."""
    shown = ", ".join(name[:100] for name in list(state)[:3])
    tensors = f"tensors ({len(state):,}, such as {shown})" if state else "no tensors"
    return UserError(
        f"{origin} holds {tensors}, and no backbone where a "
        f"known program would put it. Known: {', '.join(METHODS)}. For a network of timm name it: "
        f"clove import {origin} --architecture timm:NAME --out backbone.safetensors. Otherwise "
        "save the backbone's own state dict under torchvision's names and load that."
    )


def _apply(layout: Layout, state: Mapping[str, Tensor], branch: Branch | None) -> Found | None:
    if layout.evidence and not any(name.startswith(layout.evidence) for name in state):
        return None
    student = layout.student if _holds_backbone(layout, layout.student, state) else None
    teachers = (prefix for prefix in layout.teacher if _holds_backbone(layout, prefix, state))
    prefixes = {"student": student, "teacher": next(teachers, None)}
    if branch is None and layout.transfers == "ask" and None not in prefixes.values():
        raise _two_branches(layout)
    chosen: Branch = branch or ("teacher" if layout.transfers == "teacher" else "student")
    prefix = prefixes[chosen]
    if prefix is not None:
        return Found(layout, prefix, chosen)
    if branch is not None and any(prefix is not None for prefix in prefixes.values()):
        raise UserError(
            f"The checkpoint was recognised as {layout.title}, but it holds no {branch}. Leave out "
            f"--branch {branch}."
        )
    return None


def _holds_backbone(layout: Layout, prefix: str, state: Mapping[str, Tensor]) -> bool:
    if layout.method == OWN:  # any network of any library
        return any(name.startswith(prefix) for name in state)
    return find_dialect(state, prefix) is not None


def _two_branches(layout: Layout) -> UserError:
    return UserError(
        f"The checkpoint was recognised as {layout.title}: it holds a backbone twice, and does not "
        "tell which one is meant to be used. Choose one, and use the new file: "
        "clove import FILE --branch student --out backbone.safetensors (or --branch teacher; or "
        "name the program with --method, such as slotcon, which hands out its teacher)."
    )
