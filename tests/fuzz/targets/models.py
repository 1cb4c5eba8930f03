"""Fine-tuned models, and what ``clove predict`` is pointed at; heads of other detectors."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import struct
import tempfile
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from random import Random

import numpy as np
import timm
import torch
from builders.files.odd_files import encode, photo
from builders.files.small_sources import member, write_tar
from builders.tasks.exported_detectors import write_tiny_run
from fuzz.formats import damaged_safetensors, damaged_tar, damaged_zip, mostly
from fuzz.mutations import damaged, damaged_json
from fuzz.target import Files, Limit, Target
from fuzz.targets.commands import damaged_yaml, muted
from fuzz.targets.images import files_of, with_pixels
from fuzz.targets.weights import damaged_pickle
from safetensors.torch import save

from clove_ssl.config.predicting import PredictConfig
from clove_ssl.finetuning.finetuned import load_finetuned
from clove_ssl.finetuning.starting_heads import load_heads
from clove_ssl.predicting.inputs import Inputs
from clove_ssl.predicting.run import predict_images
from clove_ssl.tasks.base import TaskModel
from clove_ssl.tasks.detection.model import DetectionNetwork
from clove_ssl.tasks.rcnn.detectron2_names import detectron2_name
from clove_ssl.tasks.rcnn.mmdetection_names import mmdetection_name
from clove_ssl.weights.load import read_backbone

ARCHITECTURE = "timm:test_resnet"
MODEL = "model.safetensors"
TASKS = ("coco-fpn", "voc-semantic")


@cache
def _model_files() -> dict[str, bytes]:
    """The file of a detector with masks, and of a segmenter."""
    return {
        task: files_of(
            lambda folder, task=task: write_tiny_run(
                folder / "run", task, architecture=ARCHITECTURE
            )
        )[f"run/export/{MODEL}"]
        for task in TASKS
    }


def _model_seeds() -> dict[str, Files]:
    picture = {"photo.png": encode(photo(20, 24), "PNG")}
    return {task: {MODEL: data, **picture} for task, data in _model_files().items()}


def damaged_metadata(data: bytes, chance: Random) -> bytes:
    """Change what a file says about itself; the digest of its tensors stays right."""
    try:
        length = struct.unpack_from("<Q", data)[0]
        header = json.loads(data[8 : 8 + length])
        said = header["__metadata__"]
    except (struct.error, ValueError, LookupError, TypeError):  # made of parts of two files
        return damaged(data, chance)
    name = chance.choice(["config", "config", "vocabulary", "vocabulary", *said])
    change = {"config": damaged_yaml, "vocabulary": damaged_json}.get(name, damaged)
    if chance.random() < 0.1:
        del said[name]
    else:
        said[name] = change(said[name].encode(), chance).decode("utf-8", "replace")
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


def _any_model(data: bytes, chance: Random) -> bytes:
    if chance.random() < 0.7:
        return damaged_metadata(data, chance)
    return mostly(damaged_safetensors)(data, chance)


def _use_model(folder: Path) -> None:
    with muted():
        _predict(folder / MODEL, folder / "photo.png", folder / "out")


def _predict(model: Path, image: Path, out: Path) -> None:
    try:
        predict_images(PredictConfig(model=model, images=(image,), out=out, score=0.0))
    finally:
        shutil.rmtree(out, ignore_errors=True)


MODELS = Target(
    "models",
    _model_seeds,
    _use_model,
    Limit(2.0, 128),
    damages={MODEL: _any_model},
    changed=(MODEL,),
    turns=2,
)


def _video() -> bytes:
    """Six frames of motion JPEG."""
    import cv2

    def write(folder: Path) -> None:
        code = cv2.VideoWriter_fourcc(*"MJPG")
        video = cv2.VideoWriter(str(folder / "v.avi"), code, 5.0, (32, 24))
        for number in range(6):
            video.write(np.ascontiguousarray(photo(24, 32)[..., ::-1] // (number + 1)))
        video.release()

    return files_of(write)["v.avi"]


def _input_seeds() -> dict[str, Files]:
    picture = encode(photo(8, 8), "PNG")
    members = [member("a/b.png", picture), member("../c.png", picture), member("a/b.jpg", b"no")]
    shard = files_of(lambda folder: write_tar(folder / "a.tar", *members))
    found = {"tar": shard, "image": {"a.png": picture}}
    if find_spec("cv2") is not None:
        found["video"] = {"a.avi": _video()}
    return found


def _read_inputs(folder: Path) -> None:
    """All images, as prediction reads them; what cannot be read is named, not refused."""
    for path in sorted(folder.iterdir()):
        if path.suffix in (".tar", ".png", ".avi"):
            for image in Inputs((path,)):
                assert isinstance(image.pixels, torch.Tensor) or image.pixels
                assert ".." not in Path(image.place).parts, "results would leave their folder"
                assert not Path(image.place).is_absolute()


INPUTS = Target(
    "predict-inputs",
    _input_seeds,
    _read_inputs,
    Limit(1.0, 64),
    damages={".tar": mostly(damaged_tar)},
    changed=(".tar", ".avi", ".png"),
    size=with_pixels,
)


@cache
def _detector() -> TaskModel:
    with muted():
        folder = Path(tempfile.mkdtemp(prefix="clove-fuzz-"))
        write_tiny_run(folder / "run", TASKS[0], architecture=ARCHITECTURE)
        model = load_finetuned(folder / "run").network
        shutil.rmtree(folder)
    return model


def _heads(name: Callable[[str], str]) -> dict[str, torch.Tensor]:
    """The heads of the tiny detector under the names of another program."""
    assert isinstance(_detector(), DetectionNetwork)
    state = _detector().detector.state_dict()
    return {name(key): value for key, value in state.items() if not key.startswith("features.back")}


def _head_seeds() -> dict[str, Files]:
    theirs = {key: t.numpy() for key, t in _heads(partial(detectron2_name, kind="fpn")).items()}
    content = {"model": theirs, "__author__": "somebody", "matching_heuristics": True}
    stream = io.BytesIO()
    torch.save({"meta": {"epoch": 1}, "state_dict": _heads(mmdetection_name)}, stream)
    own = _model_files()[TASKS[0]]
    files = {"detectron2.pkl": pickle.dumps(content), "mmdetection.pth": stream.getvalue()}
    return {name: {name: data} for name, data in {**files, "own.safetensors": own}.items()}


def _load_heads(folder: Path) -> None:
    [path] = (path for path in folder.iterdir() if path.suffix != ".lock")
    load_heads(_detector(), path)


HEADS = Target(
    "heads",
    _head_seeds,
    _load_heads,
    Limit(1.0, 64),
    damages={
        ".pkl": mostly(damaged_pickle),
        ".pth": mostly(damaged_zip(mostly(damaged_pickle))),
        ".safetensors": mostly(damaged_safetensors),
    },
)


def _hub_seeds() -> dict[str, Files]:
    network = timm.create_model("test_resnet")
    config = {"architecture": "test_resnet", "num_classes": 1000, "pretrained_cfg": {"tag": "x"}}
    return {
        "timm": {
            "config.json": json.dumps(config).encode(),
            MODEL: save({name: t.contiguous() for name, t in network.state_dict().items()}),
        }
    }


HUB = Target(
    "hub-folders",
    _hub_seeds,
    lambda folder: read_backbone(folder) and None,
    Limit(1.0, 64),
    damages={".json": damaged_json, MODEL: mostly(damaged_safetensors)},
)

TARGETS = (MODELS, INPUTS, HEADS, HUB)
