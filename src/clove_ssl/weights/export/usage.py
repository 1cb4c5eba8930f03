"""How each exported file is opened, as the model card shows it."""

from __future__ import annotations

import json
from collections.abc import Callable

from clove_ssl.weights.config import FormatName
from clove_ssl.weights.export.exported import Exported, ResNetShape
from clove_ssl.weights.export.transformers_folder import suits_transformers

_MEAN_255 = "[123.675, 116.280, 103.530]"
_STD_255 = "[58.395, 57.120, 57.375]"


def describe_usage(exported: Exported, name: FormatName, file: str) -> str:
    """A fenced example that opens ``file``."""
    return _USAGES[name](exported, file)


def _python(code: str) -> str:
    return f"```python\n{code.strip()}\n```"


def _safetensors(exported: Exported, file: str) -> str:
    return _python(f"""
from clove_ssl import load_backbone

backbone = load_backbone("{file}").eval()
maps = backbone(images)  # by stage: {", ".join(exported.backbone.channels)}
""")


def _torchvision(exported: Exported, file: str) -> str:
    is_dilated = exported.backbone.output_stride == 16
    dilated = ", replace_stride_with_dilation=[False, False, True]" if is_dilated else ""
    head = "classifier" if exported.network.startswith("convnext") else "fc"
    return _python(f"""
import torch
import torchvision

network = torchvision.models.get_model(
    "{exported.network}"{dilated}
)
network.{head} = torch.nn.Identity()
network.load_state_dict(torch.load("{file}", weights_only=True))
""")


def _timm(exported: Exported, file: str) -> str:
    stages = len(exported.backbone.channels)
    dilated = ", output_stride=16" if exported.backbone.output_stride == 16 else ""
    cut = f", out_indices=range({stages})" if exported.is_timm and stages < 4 else ""
    return _python(f"""
import timm
from safetensors.torch import load_file

network = timm.create_model("{exported.network}", features_only=True{dilated}{cut})
network.load_state_dict(load_file("{file}"))
""")


def detectron2_settings(exported: Exported, file: str) -> str:
    """The lines of a config of Detectron2 that matter for these weights."""
    options: dict[str, object] = {
        **resnet_settings(exported.network),
        "STRIDE_IN_1X1": False,
        "NORM": '"SyncBN"',
    }
    network = "\n".join(f"    {name}: {value}" for name, value in options.items())
    return f"""MODEL:
  WEIGHTS: "{file}"
  PIXEL_MEAN: {_MEAN_255}
  PIXEL_STD: {_STD_255}
  BACKBONE:
    FREEZE_AT: 0
  RESNETS:
{network}
INPUT:
  FORMAT: "RGB\""""


def resnet_settings(network: str) -> dict[str, int]:
    """What Detectron2 must be told to build one of torchvision's ResNets."""
    shape = ResNetShape.of(network)
    return {
        "DEPTH": shape.depth,
        **({"RES2_OUT_CHANNELS": 64} if shape.depth < 50 else {}),
        **({"NUM_GROUPS": shape.groups} if shape.groups > 1 else {}),
        **({"WIDTH_PER_GROUP": shape.width} if shape.width != 64 else {}),
    }


def _detectron2(exported: Exported, file: str) -> str:
    return f"```yaml\n{detectron2_settings(exported, file)}\n```"


def mmdetection_resnet(network: str) -> dict[str, object]:
    """What MMDetection must be told to build one of torchvision's ResNets."""
    shape = ResNetShape.of(network)
    grouped = {"type": "ResNeXt", "groups": shape.groups, "base_width": shape.width}
    kind = grouped if shape.groups > 1 else {"type": "ResNet"}
    return {**kind, "depth": shape.depth, "style": "pytorch"}


def mmdetection_backbone(exported: Exported, file: str) -> dict[str, object]:
    """The backbone of a config of MMDetection with these weights."""
    return {
        **mmdetection_resnet(exported.network),
        "norm_cfg": {"type": "SyncBN", "requires_grad": True},
        "norm_eval": False,
        "init_cfg": {"type": "Pretrained", "checkpoint": file},
    }


def _mmdetection(exported: Exported, file: str) -> str:
    options = mmdetection_backbone(exported, file)
    lines = "\n".join(f"    {name}={_as_call(value)}," for name, value in options.items())
    return _python(f"""
backbone = dict(
{lines}
)
data_preprocessor = dict(mean={_MEAN_255}, std={_STD_255}, bgr_to_rgb=True)
""")


def _as_call(value: object) -> str:
    """A value as people write it in a config of MMDetection."""
    if isinstance(value, dict):
        return f"dict({', '.join(f'{name}={_as_call(each)}' for name, each in value.items())})"
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _transformers(exported: Exported, file: str) -> str:
    return _python(f"""
from transformers import ResNetBackbone

network = ResNetBackbone.from_pretrained("{file}")
maps = network(images).feature_maps  # of strides 4, 8, 16 and 32
""")


def _onnx(exported: Exported, file: str) -> str:
    return _python(f"""
import onnxruntime

session = onnxruntime.InferenceSession("{file}")
outputs = session.run(None, {{"images": images.numpy()}})  # any batch, height and width
""")


def _torch_export(exported: Exported, file: str) -> str:
    return _python(f"""
import torch

network = torch.export.load("{file}").module()
outputs = network(images)  # any batch, height and width
""")


def _hub(exported: Exported, file: str) -> str:
    own = _python(f"""
from clove_ssl import load_backbone

backbone = load_backbone("{file}")
""")
    if not exported.is_resnet:
        return own
    with_timm = _python(f"""
import timm

network = timm.create_model("local-dir:{file}", pretrained=True, num_classes=0)
""")
    if not suits_transformers(exported):
        return f"{own}\n\n{with_timm}"
    with_transformers = _python(f"""
from transformers import ResNetBackbone  # of version 4 also AutoBackbone

network = ResNetBackbone.from_pretrained("{file}", subfolder="transformers")
""")
    return f"{own}\n\n{with_transformers}\n\n{with_timm}"


_USAGES: dict[FormatName, Callable[[Exported, str], str]] = {
    "safetensors": _safetensors,
    "torchvision": _torchvision,
    "timm": _timm,
    "detectron2": _detectron2,
    "mmdetection": _mmdetection,
    "transformers": _transformers,
    "onnx": _onnx,
    "torch-export": _torch_export,
    "hub": _hub,
}
