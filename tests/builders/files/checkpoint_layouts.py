"""Checkpoints as other programs write them, made from the tensors of a ResNet.

Keys and prefixes are those that the programs and their converters use; all other
tensors are small stand-ins. Where a program keeps two branches, the one that its
authors do not hand out has other numbers.
"""

from __future__ import annotations

import argparse
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clove_ssl.backbones.build import Backbone
from clove_ssl.weights.load import LoadReport, load_weights

State = dict[str, Tensor]
EPSILON = 1e-5
STD = (0.229, 0.224, 0.225)


def load_state(backbone: Backbone, state: Mapping[str, Tensor], folder: Path) -> LoadReport:
    """Put a state of any known layout into a backbone, by way of a file."""
    path = folder / "state.pth"
    torch.save(dict(state), path)
    return load_weights(backbone, path)


def under(prefix: str, state: State) -> State:
    return {prefix + name: tensor for name, tensor in state.items()}


def other(state: State) -> State:
    """The same names with other numbers, as of the branch that must not be taken."""
    return {name: tensor + 1 for name, tensor in state.items()}


def linear(*names: str) -> State:
    return {name: torch.zeros(3, 3) for name in names}


def detectron2(state: State) -> dict[str, np.ndarray]:
    """The renaming that MoCo's converter does, in the forward direction."""
    renamed = {}
    for name, tensor in state.items():
        parts = name.split(".")
        if parts[0].startswith("layer"):
            parts[0] = f"res{int(parts[0][-1]) + 1}"
            parts[2:-1] = {
                "conv": lambda p: p[2:-1],
                "bn1": lambda p: ["conv1", "norm"],
                "bn2": lambda p: ["conv2", "norm"],
                "bn3": lambda p: ["conv3", "norm"],
                "downsample0": lambda p: ["shortcut"],
                "downsample1": lambda p: ["shortcut", "norm"],
            }["conv" if parts[2].startswith("conv") else "".join(parts[2:-1])](parts)
        else:
            parts[:1] = ["stem", "conv1"] + ["norm"] * (parts[0] == "bn1")
        renamed[".".join(parts)] = tensor.numpy()
    return renamed


def children(state: State) -> State:
    """Names in a ``Sequential`` of the network's children: conv1 is 0, layer1 is 4."""
    order = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4")
    return {
        f"{order.index(name.partition('.')[0])}.{name.partition('.')[2]}": tensor
        for name, tensor in state.items()
    }


def transformers(state: State) -> State:
    """The names of transformers' own ResNets."""
    renamed = {}
    for name, tensor in state.items():
        words = name.split(".")
        kind = "convolution" if words[-2][:4] in ("conv", "0") else "normalization"
        if words[0].startswith("layer"):
            stage, block = int(words[0][-1]) - 1, words[1]
            part = "shortcut" if words[2] == "downsample" else f"layer.{int(words[2][-1]) - 1}"
            place = f"encoder.stages.{stage}.layers.{block}.{part}"
        else:
            place = "embedder.embedder"
        renamed[f"{place}.{kind}.{words[-1]}"] = tensor
    return renamed


def folded_caffe2(state: State) -> dict[str, np.ndarray]:
    """MSRA's pickle: scale and shift instead of a norm, BGR pixels from 0 to 255."""
    blobs: dict[str, np.ndarray] = {}
    branches = {"shortcut": "1", "conv1": "2a", "conv2": "2b", "conv3": "2c"}
    for name, array in detectron2(state).items():
        words = name.split(".")
        if words[0] == "stem":
            place = "res_conv1" if "norm" in words else "conv1"
        else:
            place = f"{words[0]}_{words[1]}_branch{branches[words[2]]}"
        ending = {"weight": "bn_s", "bias": "bn_b"} if "norm" in words else {"weight": "w"}
        if words[-1] in ending:
            blobs[f"{place}_{ending[words[-1]]}"] = array
    factors = 255 * np.array(STD, dtype=np.float32)[None, :, None, None]
    blobs["conv1_w"] = np.ascontiguousarray((blobs["conv1_w"] / factors)[:, ::-1])
    return blobs | {"fc1000_w": np.zeros((9, 3)), "fc1000_b": np.zeros(9), "conv1_b": np.zeros(64)}


def with_neutral_statistics(state: State) -> State:
    """What a folded network has instead of its own batch-norm statistics."""
    neutral = {"running_mean": 0.0, "running_var": 1 - EPSILON}
    return {
        name: torch.full_like(tensor, neutral[name.rpartition(".")[2]])
        if name.rpartition(".")[2] in neutral
        else tensor
        for name, tensor in state.items()
    }


def slotcon(s: State) -> object:
    model = {**under("module.encoder_k.", s), **under("module.encoder_q.", other(s))}
    model |= linear("module.grouping_k.w", "module.grouping_q.w", "module.center")
    return {"model": model, "args": argparse.Namespace(lr=1.0, names=["a"])}


def c4_detector(s: State) -> object:
    """A C4 detector of Detectron2 keeps the last stage in its head."""
    model: dict[str, Any] = {}
    for name, array in detectron2(s).items():
        model[("roi_heads." if name.startswith("res5") else "backbone.") + name] = array
    return {"model": model | {"roi_heads.box_predictor.cls_score.weight": np.zeros((2, 2))}}


LAYOUTS: dict[str, Callable[[State], Any]] = {
    "CLoVE": lambda s: {
        "model": {
            **under("module.encoder_k.", other(s)),
            **under("module.encoder.", s),
            **linear("module.projector.linear1.weight", "module.self_attn.in_proj_weight"),
        },
        "optimizer": {"state": {}, "param_groups": []},
        "opt": argparse.Namespace(lr=1.0),
        "epoch": 200,
    },
    "PixPro": lambda s: {
        "model": {
            **under("module.encoder.", s),
            **under("module.encoder_k.", other(s)),
            **linear("module.value_transform.weight", "module.projector.linear1.weight"),
        },
        "opt": argparse.Namespace(),
    },
    "a bare backbone": lambda s: {"state_dict": s, "author": "DenseCL"},
    "DenseCL": lambda s: {
        "state_dict": {
            **under("backbone.", s),
            **under("encoder_q.0.", s),
            **under("encoder_k.0.", other(s)),
            **linear("queue", "queue2", "neck.mlp.0.weight", "head.weight"),
        },
        "meta": {"epoch": 200},
    },
    "MoCo v2 (OpenMMLab)": lambda s: {
        "state_dict": {**under("backbone.", s), **linear("queue", "neck.mlp.0.weight")}
    },
    "BYOL (OpenMMLab)": lambda s: {
        "state_dict": {
            **under("target_net.0.", other(s)),
            **under("backbone.", s),
            **linear("neck.mlp.0.weight", "data_preprocessor.mean"),
        }
    },
    "ReSim": lambda s: {
        "state_dict": {
            **under("module.encoder_k.", other(s)),
            **under("module.encoder_q.", s),
            **linear("module.queue", "module.encoder_q.fc.0.weight"),
            **linear("module.encoder_q.fpn_lateral3.weight", "module.encoder_q.fpn_output3.bias"),
        }
    },
    "MoCo v2": lambda s: {
        "state_dict": {
            **under("module.encoder_q.", s),
            **under("module.encoder_k.", other(s)),
            **linear("module.queue", "module.encoder_q.fc.0.weight", "module.encoder_q.fc.2.bias"),
        },
        "arch": "resnet50",
    },
    "DetCo": lambda s: {
        "state_dict": {**s, **linear("fc.weight", "mlp_0.weight", "neck.a.weight")}
    },
    "SlotCon": slotcon,
    "SlotCon (teacher alone)": lambda s: under("module.encoder_k.", s),
    "SetSim": lambda s: {
        "state_dict": {
            **under("module.encoder_q.0.", s),
            **under("module.encoder_k.0.", other(s)),
            **linear("module.encoder_q.0.fc.weight", "module.encoder_q.1.weight"),
            **linear("module.queue2", "module.logits_mask"),
        }
    },
    "VICRegL": lambda s: {
        "model": {
            **under("module.backbone.", s),
            **linear("module.maps_projector.0.weight", "module.classifier.weight"),
        },
        "epoch": 300,
    },
    "CP2": lambda s: {
        "state_dict": {
            **under("module.encoder_q.backbone.", s),
            **under("module.encoder_k.backbone.", other(s)),
            **linear("module.encoder_q.decode_head.conv.weight", "module.queue"),
        }
    },
    "CP2 (backbone and head)": lambda s: {
        "state_dict": {**under("backbone.", s), **linear("decode_head.conv.weight")}
    },
    "BYOL (yaox12)": lambda s: {
        "model": {
            **under("module.online_network.encoder.", children(s)),
            **under("module.target_network.encoder.", other(children(s))),
            **linear("module.online_network.projetion.0.weight", "module.predictor.0.weight"),
        },
        "epoch": 300,
    },
    "BYOL (yaox12, backbone)": lambda s: {"online_backbone": under("module.", children(s))},
    "BYOL (yaox12, by order)": lambda s: {
        "online_backbone": OrderedDict((f"part{i}.tensor", t) for i, t in enumerate(s.values()))
    },
    "Detectron2 (ReSim, MoCo)": lambda s: {
        "model": {
            **detectron2(s),
            "stem.fc.0.weight": np.zeros(3),
            "backbone.fpn_lateral3": np.ones(2),
        },
        "__author__": "MOCO",
        "matching_heuristics": True,
    },
    "Detectron2 (detector)": lambda s: {
        "model": {
            **{f"backbone.bottom_up.{name}": array for name, array in detectron2(s).items()},
            "backbone.fpn_lateral2.weight": np.zeros((2, 2)),
            "proposal_generator.rpn_head.conv.weight": np.zeros((2, 2)),
        }
    },
    "Detectron2 (C4 detector)": c4_detector,
    "MMDetection (detector)": lambda s: {
        "meta": {"epoch": 12},
        "state_dict": {
            **under("backbone.", s),
            **linear("neck.lateral_convs.0.conv.weight", "rpn_head.rpn_conv.weight"),
            **linear("roi_head.bbox_head.fc_cls.weight"),
        },
    },
    "DINO": lambda s: {
        "student": {
            **under("module.backbone.", other(s)),
            **linear("module.head.mlp.0.weight", "module.head.last_layer.weight_g"),
        },
        "teacher": {**under("backbone.", s), **linear("head.mlp.0.weight")},
        "optimizer": {"state": {}, "param_groups": []},
        "epoch": 800,
        "args": argparse.Namespace(arch="resnet50"),
        "dino_loss": {"center": torch.zeros(1, 8)},
    },
    "SwAV": lambda s: {
        **under("module.", s),
        **linear("module.projection_head.0.weight", "module.projection_head.1.bias"),
        **linear("module.projection_head.3.weight", "module.prototypes.weight"),
    },
    "a module around a backbone": lambda s: {
        "state_dict": {
            **under("model.backbone.", s),
            **linear("model.head.weight", "criterion.weight"),
        },
        "pytorch-lightning_version": "2.4.0",
        "hyper_parameters": {"lr": 0.1},
    },
    "a module around a network": lambda s: {
        "state_dict": {**under("model.", s), **linear("model.fc.weight", "criterion.weight")}
    },
    "transformers": lambda s: {
        **under("resnet.", transformers(s)),
        **linear("classifier.1.weight", "classifier.1.bias"),
    },
    "transformers (backbone)": lambda s: transformers(s),
}
