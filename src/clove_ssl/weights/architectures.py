"""Find out from its tensors which network a state belongs to, and whether it is complete.

Numbers of batches that a batch norm has counted are no weights: files of old
programs lack them, and they are neither asked for nor counted here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from torch import Tensor

from clove_ssl.backbones.build import CAFFE_SUFFIX, backbone_names, outlined, torchvision_body
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.errors import UserError
from clove_ssl.weights.dialects import State

Shapes = dict[str, tuple[int, ...]]
COUNTER = "num_batches_tracked"


def shapes_of(state: Mapping[str, Tensor]) -> Shapes:
    """Shapes by name, counters left out."""
    return {
        name: tuple(tensor.shape) for name, tensor in state.items() if not name.endswith(COUNTER)
    }


def find_network(state: State, *, origin: str) -> str:
    """The torchvision network that a state fits completely; refuses what fits none."""
    found = shapes_of(state)
    if "trunk_output.block1.block1-0.proj.0.weight" in found:
        raise UserError(
            f"{origin} holds a RegNet, and the tensors do not tell which. Name it: clove import "
            f"{origin} --architecture regnet_y_400mf --out backbone.safetensors"
        )
    candidates = {name: _network_shapes(name) for name in _candidates(found)}
    name = min(candidates, key=lambda name: len(candidates[name].items() ^ found.items()))
    check_fit(state, candidates[name], name=name, origin=origin)
    return name


def name_by_order(state: State) -> State | None:
    """Give a ResNet's tensors torchvision's names by their order alone, if all shapes agree."""
    tensors = [each for name, each in state.items() if "fc." not in name and each.ndim > 0]
    order = [tuple(tensor.shape) for tensor in tensors]
    for network in _candidates({"conv1.weight": ()}):
        shapes = _network_shapes(network)
        if list(shapes.values()) == order:
            return dict(zip(shapes, tensors, strict=True))
    return None


class DoesNotFit(UserError):
    """A state has other tensors than the network."""


def fitting(state: Mapping[str, Tensor], expected: Shapes) -> dict[str, Tensor]:
    """The tensors of a state that the network has, in the same shape."""
    found = shapes_of(state)
    return {name: state[name] for name in expected if found.get(name) == expected[name]}


def check_fit(state: Mapping[str, Tensor], expected: Shapes, *, name: str, origin: str) -> None:
    """Refuse a state unless it has exactly the tensors of the network."""
    found = shapes_of(state)
    missing = sorted(expected.keys() - found.keys())
    extra = sorted(found.keys() - expected.keys())
    reshaped = sorted(key for key in expected.keys() & found.keys() if expected[key] != found[key])
    if not (missing or extra or reshaped):
        return
    matched = len(expected) - len(missing) - len(reshaped)
    raise DoesNotFit(
        f"{origin} does not fit {name}: {matched} of {len(expected)} tensors fit, "
        f"{_count('missing', missing)}, {_count('of another shape', reshaped)}, "
        f"{_count('unknown', extra)}. Nothing was loaded. Give a file of a {name}, or the "
        "network the file was made from."
    )


def _candidates(found: Shapes) -> list[str]:
    family = "convnext" if "features.0.0.weight" in found else "resne"
    return [name for name in backbone_names() if family in name and CAFFE_SUFFIX not in name]


@cache
def _network_shapes(name: str) -> Shapes:
    with outlined():
        return shapes_of(torchvision_body(BackboneConfig(name=name)).state_dict())


def _count(what: str, names: list[str]) -> str:
    return f"{len(names)} {what}" + (f" (such as {names[0]})" if names else "")
