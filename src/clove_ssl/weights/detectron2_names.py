"""The names of a ResNet's tensors in torchvision, in Detectron2 and in Caffe2's old pickles.

The networks are the same; only the words differ. Names here are those of a bare
ResNet: whatever a program puts before them (``backbone.bottom_up.``, ``module.``)
is the caller's business.

    torchvision                   Detectron2                     Caffe2 (MSRA R-50.pkl)
    conv1.weight                  stem.conv1.weight              conv1_w
    bn1.bias                      stem.conv1.norm.bias           res_conv1_bn_b
    layer1.0.conv2.weight         res2.0.conv2.weight            res2_0_branch2b_w
    layer1.0.bn2.weight           res2.0.conv2.norm.weight       res2_0_branch2b_bn_s
    layer1.0.downsample.0.weight  res2.0.shortcut.weight         res2_0_branch1_w
    layer1.0.downsample.1.bias    res2.0.shortcut.norm.bias      res2_0_branch1_bn_b
"""

from __future__ import annotations

import re

_CAFFE2_BRANCHES = {"1": "shortcut", "2a": "conv1", "2b": "conv2", "2c": "conv3"}
_CAFFE2_ENDINGS = {
    "w": "weight",
    "bn_s": "norm.weight",
    "bn_b": "norm.bias",
    "bn_rm": "norm.running_mean",
    "bn_riv": "norm.running_var",
}
_CAFFE2_CONVOLUTION = re.compile(r"(?:res(\d)_(\d+)_branch(1|2a|2b|2c)|(?:res_)?conv1)_(\w+)")


def detectron2_name(name: str) -> str:
    """torchvision's name of a ResNet tensor in Detectron2's words.

    >>> detectron2_name("layer3.0.downsample.1.weight")
    'res4.0.shortcut.norm.weight'
    """
    name = re.sub(r"^bn1\.", "stem.conv1.norm.", name)
    name = re.sub(r"^conv1\.", "stem.conv1.", name)
    name = re.sub(r"^layer(\d)\.", lambda match: f"res{int(match[1]) + 1}.", name)
    name = re.sub(r"\.bn(\d)\.", r".conv\1.norm.", name)
    name = name.replace(".downsample.1.", ".shortcut.norm.")
    return name.replace(".downsample.0.", ".shortcut.")


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


def torchvision_name_of_caffe2(name: str) -> str:
    """Caffe2's name of a ResNet tensor in torchvision's words; unknown names stay.

    >>> torchvision_name_of_caffe2("res4_0_branch1_bn_s")
    'layer3.0.downsample.1.weight'
    """
    found = _CAFFE2_CONVOLUTION.fullmatch(name)
    if found is None or found[4] not in _CAFFE2_ENDINGS:
        return name
    stage, block, branch, ending = found.groups()
    place = f"res{stage}.{block}.{_CAFFE2_BRANCHES[branch]}" if stage else "stem.conv1"
    return torchvision_name(f"{place}.{_CAFFE2_ENDINGS[ending]}")
