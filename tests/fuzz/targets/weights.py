"""Weights of any program (pickles, zip files of torch, safetensors) and MATLAB's files."""

from __future__ import annotations

import argparse
import io
import pickle
import pickletools
from random import Random

import numpy as np
import torch
from builders.files.surface_files import write_matlab, write_surface_files
from fuzz.canaries import canary_pickles, torch_archive
from fuzz.formats import damaged_safetensors, damaged_zip, mostly
from fuzz.mutations import damaged
from fuzz.target import Files, Limit, Target
from fuzz.targets.images import files_of
from safetensors.torch import save

from clove_ssl.backbones.build import build_backbone
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.tasks.densepose.matlab_files import read_matlab
from clove_ssl.tasks.densepose.surface_files import open_surface
from clove_ssl.weights.load import read_backbone
from clove_ssl.weights.safetensors_file import save_backbone

CONTENT = {
    "state_dict": {"conv1.weight": torch.arange(6.0), "layer1.0.bn1.running_mean": torch.ones(2)},
    "opt": argparse.Namespace(a=1),
    "best": np.ones(2),
    "epoch": 3,
}


def _with_torch(new: bool) -> bytes:
    stream = io.BytesIO()
    torch.save(CONTENT, stream, _use_new_zipfile_serialization=new)
    return stream.getvalue()


def _arrays() -> dict[str, object]:
    return {"model": {"w": np.arange(6.0), "b": np.ones((2, 3), ">f4")}, "n": [1, "a", None, 0.5]}


def _own_file() -> bytes:
    backbone = build_backbone(BackboneConfig(name="timm:test_resnet", stage="c4"))
    files = files_of(lambda folder: save_backbone(backbone, folder / "w", {"method": "clove"}))
    return files["w"]


def _weight_seeds() -> dict[str, Files]:
    kinds = {f"pickle {protocol}": pickle.dumps(_arrays(), protocol) for protocol in range(6)}
    kinds |= {"torch": _with_torch(new=True), "old torch": _with_torch(new=False)}
    kinds |= {"safetensors": save({"conv1.weight": torch.arange(6.0)}), "own": _own_file()}
    canaries = canary_pickles()
    kinds |= canaries | {f"{name} zip": torch_archive(data) for name, data in canaries.items()}
    return {name: {"weights": data} for name, data in kinds.items()}


_OPCODES = [code.code.encode("latin1") for code in pickletools.opcodes]


def damaged_pickle(data: bytes, chance: Random) -> bytes:
    """Opcodes exchanged, doubled, left out or made up; arguments stay where they were."""
    places = [place for _, _, place in pickletools.genops(data) if place is not None]
    first, second = sorted(chance.choices(range(len(places)), k=2))
    pieces = [data[a:b] for a, b in zip(places, [*places[1:], len(data)], strict=True)]
    if chance.random() < 0.3:
        pieces[first], pieces[second] = pieces[second], pieces[first]
    elif chance.random() < 0.5:
        pieces[first:second] = pieces[first:second] * chance.choice((0, 2, 50))
    else:
        pieces.insert(first, chance.choice(_OPCODES) + damaged(b"\1\0\0\0a\n", chance))
    return b"".join(pieces)


def _any_weights(data: bytes, chance: Random) -> bytes:
    if data[8:9] == b"{":
        return mostly(damaged_safetensors)(data, chance)
    if data.startswith(b"PK"):
        return mostly(damaged_zip(mostly(damaged_pickle)))(data, chance)
    return mostly(damaged_pickle)(data, chance)


WEIGHTS = Target(
    "weights",
    _weight_seeds,
    lambda folder: read_backbone(folder / "weights") and None,
    Limit(1.0, 64),
    damages={"": _any_weights},
)


def _surface_seeds() -> dict[str, Files]:
    files = dict(files_of(lambda folder: write_surface_files(folder, per_part=2)))
    del files["UV_symmetry_transforms.mat"]  # twelve megabytes, of a kind that the others show
    return {"surface": files}


SURFACES = Target(
    "surfaces",
    _surface_seeds,
    lambda folder: open_surface(folder) and None,
    Limit(1.0, 64),
    damages={".pkl": mostly(damaged_pickle)},
)


def _matlab_seeds() -> dict[str, Files]:
    arrays = {"a": np.arange(6.0).reshape(2, 3), "cells": [np.ones((2, 2)), np.zeros((1, 3), "u2")]}
    return {
        str(compress): files_of(
            lambda folder, compress=compress: write_matlab(
                folder / "a.mat", arrays, compress=compress
            )
        )
        for compress in (False, True)
    }


MATLAB = Target(
    "matlab", _matlab_seeds, lambda folder: read_matlab(folder / "a.mat") and None, Limit(0.5, 32)
)

TARGETS = (WEIGHTS, SURFACES, MATLAB)
