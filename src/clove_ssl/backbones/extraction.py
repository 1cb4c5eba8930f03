"""Take the one backbone that is wanted out of everything a checkpoint holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from clove_ssl.backbones.architectures import name_by_order
from clove_ssl.backbones.checkpoint_files import Content
from clove_ssl.backbones.dialects import find_dialect, strip
from clove_ssl.backbones.folded_norms import is_folded, unfold
from clove_ssl.backbones.layouts import (
    LICENCES,
    OWN,
    Branch,
    Found,
    State,
    licence,
    method_of,
    recognise,
    unwrap,
)

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
