"""Weights under the names of other libraries, each checked by loading it there.

Detectron2 and MMDetection are heavy to install; their files are checked by
reading them back, and the names by tests.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torchvision
from numpy.typing import NDArray
from safetensors.torch import load
from torch import Tensor, nn
from torchvision.models.feature_extraction import create_feature_extractor

from clove_ssl.backbones.build import CAFFE_SUFFIX, STAGES, build_backbone, import_timm
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.errors import UserError
from clove_ssl.weights.convnext_names import timm_name
from clove_ssl.weights.detectron2_names import detectron2_name
from clove_ssl.weights.export.exported import Exported, largest_difference, refuse
from clove_ssl.weights.load import load_backbone
from clove_ssl.weights.safetensors_file import portable_state, to_bytes, write_bytes

_IN_MMSEGMENTATION = (
    "MMSegmentation has the same network (ResNet with strides=(1, 2, 2, 1), dilations=(1, 1, 1, "
    "2), contract_dilation=True) and reads what --to torchvision writes. "
)
_OTHERWISE = "Export to onnx or safetensors instead."


def write_torchvision(exported: Exported, path: Path) -> None:
    """A state dict for ``torchvision.models.get_model`` without its classifier."""
    if exported.is_timm or CAFFE_SUFFIX in exported.network:
        raise refuse(exported, "torchvision", _OTHERWISE)
    write_bytes(path, torch_bytes(portable_state(exported.backbone.body)))


def check_torchvision(exported: Exported, path: Path) -> float:
    """Load the file with torchvision and compare all maps."""
    network = torchvision_network(exported)
    network.load_state_dict(torch.load(path, weights_only=True))
    nodes = {exported.backbone.parts[stage][-1]: stage for stage in STAGES}
    extractor = create_feature_extractor(network.eval(), return_nodes=nodes)
    return largest_difference(exported.backbone, extractor)


def torchvision_network(exported: Exported) -> nn.Module:
    """A fresh torchvision network of the same shape, without classifier."""
    dilated = exported.backbone.output_stride == 16
    options = {"replace_stride_with_dilation": [False, False, True]} if dilated else {}
    network: nn.Module = torchvision.models.get_model(exported.network, **options)
    head = "classifier" if hasattr(network, "classifier") else "fc"
    setattr(network, head, nn.Identity())
    return network


def write_timm(exported: Exported, path: Path) -> None:
    """A state dict for a timm network with ``features_only=True``."""
    state = portable_state(exported.backbone.body)
    if exported.network.startswith("convnext") and not exported.is_timm:
        state = {timm_name(name): _without_cells(name, state[name]) for name in state}
    elif not (exported.is_timm or exported.is_resnet):
        raise refuse(exported, "timm", _OTHERWISE)
    write_bytes(path, to_bytes(state, {"format": "pt"}))


def check_timm(exported: Exported, path: Path) -> float:
    """Load the file with timm and compare all maps."""
    if exported.is_timm:
        stage: Any = exported.backbone.stage
        copy = build_backbone(BackboneConfig(name=exported.backbone.name, stage=stage)).eval()
        copy.body.load_state_dict(load(path.read_bytes()))
        return largest_difference(exported.backbone, copy)
    options = {"output_stride": 16} if exported.backbone.output_stride == 16 else {}
    network = import_timm().create_model(
        exported.network, features_only=True, out_indices=(-4, -3, -2, -1), **options
    )
    network.load_state_dict(load(path.read_bytes()))
    network.eval()
    return largest_difference(
        exported.backbone, lambda images: dict(zip(STAGES, network(images), strict=True))
    )


def write_detectron2(exported: Exported, path: Path) -> None:
    """A pickle of arrays for ``MODEL.WEIGHTS``."""
    if not exported.is_resnet:
        raise refuse(exported, "Detectron2", _OTHERWISE)
    if exported.backbone.output_stride == 16:
        raise _other_dilation("Detectron2", "")
    state = portable_state(exported.backbone.body)
    arrays = {detectron2_name(name): tensor.numpy() for name, tensor in state.items()}
    # Whatever stands before the names in a detector, Detectron2 then finds by their endings.
    write_arrays(path, arrays, by_endings=True)


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], *, by_endings: bool) -> None:
    """Arrays by Detectron2's names as the pickle that its checkpointer reads."""
    content = {"model": dict(arrays), "__author__": "clove-ssl", "matching_heuristics": by_endings}
    pickled = pickle.dumps(content, protocol=3)
    # The first array names its maker, which has moved in NumPy 2; both know the old place.
    write_bytes(path, pickled.replace(b"cnumpy._core.", b"cnumpy.core.", 1))


def write_mmdetection(exported: Exported, path: Path) -> None:
    """A checkpoint for ``init_cfg=dict(type="Pretrained", ...)`` of a backbone."""
    if not exported.is_resnet or exported.network.startswith("wide_"):
        raise refuse(exported, "MMDetection", _OTHERWISE)
    if exported.backbone.output_stride == 16:
        raise _other_dilation("MMDetection", _IN_MMSEGMENTATION)
    content = {
        "meta": dict(exported.metadata),
        "state_dict": portable_state(exported.backbone.body),
    }
    write_bytes(path, torch_bytes(content))


def check_by_reading(exported: Exported, path: Path) -> float:
    """Read the file as ``clove import`` would and compare all maps."""
    own = exported.backbone
    copy = build_backbone(BackboneConfig(name=own.name, output_stride=own.output_stride))
    copy.body.load_state_dict(load_backbone(path).body.state_dict())
    return largest_difference(own, copy.eval())


def _other_dilation(library: str, remedy: str) -> UserError:
    """The error for a dilated network, whose weights load there and give other features."""
    return UserError(
        f"A backbone with output stride 16 cannot be exported to {library}: the first block of its "
        f"dilated stage has dilation 1, {library}'s has 2, so the same weights give other features "
        f"there. {remedy}Export to torchvision, timm or onnx, or pre-train with "
        "--backbone.output-stride 32."
    )


def _without_cells(name: str, tensor: Tensor) -> Tensor:
    """Layer scales are vectors in timm: (C, 1, 1) -> (C,)."""
    return tensor.flatten() if name.endswith("layer_scale") else tensor


def torch_bytes(content: Mapping[str, Any]) -> bytes:
    """What ``torch.save`` would write."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()
