"""The names of a ResNet's tensors in torchvision and in transformers.

torchvision                   transformers
conv1.weight                  embedder.embedder.convolution.weight
bn1.bias                      embedder.embedder.normalization.bias
layer1.0.conv2.weight         encoder.stages.0.layers.0.layer.1.convolution.weight
layer1.0.bn2.weight           encoder.stages.0.layers.0.layer.1.normalization.weight
layer1.0.downsample.0.weight  encoder.stages.0.layers.0.shortcut.convolution.weight
layer1.0.downsample.1.bias    encoder.stages.0.layers.0.shortcut.normalization.bias
"""

from __future__ import annotations

import re

_STEM = "embedder.embedder"
_PARTS = {"convolution": "0", "normalization": "1"}
_THERE = re.compile(
    r"encoder\.stages\.(\d)\.layers\.(\d+)\.(?:layer\.(\d)|shortcut)\.(convolution|normalization)\."
    r"(\w+)"
)
_HERE = re.compile(r"layer(\d)\.(\d+)\.(?:(conv|bn)(\d)|downsample\.([01]))\.(\w+)")


def transformers_name(name: str) -> str:
    """torchvision's name of a ResNet tensor in the words of transformers.

    >>> transformers_name("layer3.0.downsample.1.weight")
    'encoder.stages.2.layers.0.shortcut.normalization.weight'
    """
    found = _HERE.fullmatch(name)
    if found is None:
        name = re.sub(r"^conv1\.", f"{_STEM}.convolution.", name)
        return re.sub(r"^bn1\.", f"{_STEM}.normalization.", name)
    stage, block, kind, number, side, ending = found.groups()
    is_convolution = kind == "conv" or side == "0"
    part = "convolution" if is_convolution else "normalization"
    place = "shortcut" if number is None else f"layer.{int(number) - 1}"
    return f"encoder.stages.{int(stage) - 1}.layers.{block}.{place}.{part}.{ending}"


def torchvision_name_of_transformers(name: str) -> str:
    """The name of a ResNet tensor of transformers in torchvision's words; unknown names stay.

    >>> torchvision_name_of_transformers("encoder.stages.2.layers.0.layer.1.convolution.weight")
    'layer3.0.conv2.weight'
    """
    found = _THERE.fullmatch(name)
    if found is None:
        name = name.replace(f"{_STEM}.convolution.", "conv1.")
        return name.replace(f"{_STEM}.normalization.", "bn1.")
    stage, block, number, part, ending = found.groups()
    if number is None:
        place = f"downsample.{_PARTS[part]}"
    else:
        place = ("conv" if part == "convolution" else "bn") + str(int(number) + 1)
    return f"layer{int(stage) + 1}.{block}.{place}.{ending}"
