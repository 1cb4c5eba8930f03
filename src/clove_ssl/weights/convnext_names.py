"""The names of a ConvNeXt's tensors in torchvision, in timm and in the authors' program.

The networks are the same; timm's ``features_only`` form also writes an underscore
for the first dot (``stages_0.blocks...``). The last norm and the classifier are no
part of a backbone and keep their names here.

    torchvision               timm                            authors
    features.0.0.weight       stem.0.weight                   downsample_layers.0.0.weight
    features.1.2.block.0.bias stages.0.blocks.2.conv_dw.bias  stages.0.2.dwconv.bias
    features.1.2.layer_scale  stages.0.blocks.2.gamma         stages.0.2.gamma
    features.2.1.weight       stages.1.downsample.1.weight    downsample_layers.1.1.weight
"""

from __future__ import annotations

import re

_PARTS_OF_TIMM = {
    "conv_dw": "block.0",
    "norm": "block.2",
    "mlp.fc1": "block.3",
    "mlp.fc2": "block.5",
}
_PARTS_OF_AUTHORS = {"dwconv": "block.0", "norm": "block.2", "pwconv1": "block.3"}
_PARTS_OF_AUTHORS |= {"pwconv2": "block.5"}
_TIMM_BLOCK = re.compile(r"stages\.(\d)\.blocks\.(\d+)\.(conv_dw|norm|mlp\.fc1|mlp\.fc2|gamma)(.*)")
_AUTHORS_BLOCK = re.compile(r"stages\.(\d)\.(\d+)\.(dwconv|norm|pwconv1|pwconv2|gamma)(.*)")
_TORCHVISION_BLOCK = re.compile(r"features\.([1357])\.(\d+)\.(block\.[0235]|layer_scale)(.*)")
_TORCHVISION_DOWNSAMPLING = re.compile(r"features\.([0246])\.(.*)")


def torchvision_name_of_timm(name: str) -> str:
    """timm's name in torchvision's words, in either form; unknown names stay.

    >>> torchvision_name_of_timm("stages_2.downsample.0.weight")
    'features.4.0.weight'
    """
    name = re.sub(r"^(stem|stages)_(\d)\.", r"\1.\2.", name)
    if found := _TIMM_BLOCK.fullmatch(name):
        return _torchvision_block(found, _PARTS_OF_TIMM)
    name = re.sub(r"^stem\.", "features.0.", name)
    return re.sub(r"^stages\.(\d)\.downsample\.", _downsampling, name)


def torchvision_name_of_authors(name: str) -> str:
    """The authors' name in torchvision's words; unknown names stay.

    >>> torchvision_name_of_authors("stages.3.1.pwconv2.bias")
    'features.7.1.block.5.bias'
    """
    if found := _AUTHORS_BLOCK.fullmatch(name):
        return _torchvision_block(found, _PARTS_OF_AUTHORS)
    return re.sub(r"^downsample_layers\.(\d)\.", _downsampling, name)


def timm_name(name: str) -> str:
    """torchvision's name in the words of timm's ``features_only`` form.

    >>> timm_name("features.1.2.layer_scale")
    'stages_0.blocks.2.gamma'
    """
    if found := _TORCHVISION_BLOCK.fullmatch(name):
        parts = {theirs: ours for ours, theirs in _PARTS_OF_TIMM.items()} | {"layer_scale": "gamma"}
        return f"stages_{int(found[1]) // 2}.blocks.{found[2]}.{parts[found[3]]}{found[4]}"
    if found := _TORCHVISION_DOWNSAMPLING.fullmatch(name):
        depth = int(found[1]) // 2
        return f"stages_{depth}.downsample.{found[2]}" if depth else f"stem_{found[2]}"
    return name


def _torchvision_block(found: re.Match[str], parts: dict[str, str]) -> str:
    stage, block, part, ending = found.groups()
    return f"features.{2 * int(stage) + 1}.{block}.{parts.get(part, 'layer_scale')}{ending}"


def _downsampling(found: re.Match[str]) -> str:
    return f"features.{2 * int(found[1])}."
