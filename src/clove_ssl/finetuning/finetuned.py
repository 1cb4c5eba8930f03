"""A fine-tuned model as a file, and back: what a run leaves for images of a user's own.

``export/model.safetensors`` holds the weights that were scored, norm statistics included (those of
a checkpoint are still the running ones), and in its metadata the config of the run and the
meaning of its outputs, so the file alone is enough.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from clove_ssl import __version__
from clove_ssl.backbones.build import STAGES, Backbone, build_backbone
from clove_ssl.config import files
from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.data.decode import DecodeError, decode
from clove_ssl.errors import UserError
from clove_ssl.runs.directory import RunDirectory, find, not_exported
from clove_ssl.tasks.base import Task, TaskModel, Vocabulary
from clove_ssl.weights.safetensors_file import (
    content_hash,
    portable_state,
    read_backbone_file,
    save_backbone,
    verify,
    write_bytes,
)

FORMAT = "clove-ssl model"
FORMAT_VERSION = 1


class FinetunedModel:
    """A model of a run, ready to look at images.

    Args:
        task: What it was trained for.
        network: The model itself, a torch module.
        vocabulary: What its outputs mean.
    """

    def __init__(self, task: Task, network: TaskModel, vocabulary: Vocabulary) -> None:
        self.task = task
        self.network = network.eval()
        self.class_names = vocabulary.class_names
        self.keypoint_names = vocabulary.keypoint_names

    @torch.no_grad()
    def predict(self, image: str | Path | Tensor) -> Any:
        """What is in an image: a file, or uint8 (3, H, W) RGB.

        Detectors give boxes (x0, y0, x1, y1 in pixels of the image), scores, classes (positions in
        ``class_names``), masks, keypoints and surfaces where they have a head for them, best score
        first; ``voc-semantic`` gives the class of every pixel (H, W).
        """
        pixels = image if isinstance(image, Tensor) else _read_image(Path(image))
        is_image = pixels.ndim == 3 and pixels.shape[0] == 3 and pixels.numel() > 0
        if not is_image or pixels.dtype != torch.uint8:
            raise UserError(
                f"An image has the shape (3, H, W) and values of type uint8, RGB, not "
                f"{tuple(pixels.shape)} of {pixels.dtype}. Give such a tensor, or a path."
            )
        return self.task.predict_image(self.network, pixels.cpu())


def load_finetuned(path_or_run: str | Path, *, device: str = "cpu") -> FinetunedModel:
    """The model of a finished fine-tuning run, or of its ``export/model.safetensors``."""
    path = _find(Path(path_or_run))
    state, metadata = read_backbone_file(path)
    if metadata.get("format") != FORMAT:
        raise UserError(
            f"{path} holds no fine-tuned model. Give a run of clove finetune, or its "
            "export/model.safetensors; backbones are opened by load_backbone."
        )
    verify(path, state, metadata, newest=FORMAT_VERSION)
    config = files.parse(FinetuneConfig, metadata["config"], where=path)
    vocabulary = Vocabulary(**{k: tuple(v) for k, v in json.loads(metadata["vocabulary"]).items()})
    task = config.task.build()
    backbone = build_backbone(task.backbone_config(metadata["architecture"]))
    network = task.build_model(backbone, task.without_data(vocabulary), seed=config.seed)
    network.load_state_dict(state)
    return FinetunedModel(task, network.to(device), vocabulary)


def write_finetuned(
    run: RunDirectory, config: FinetuneConfig, model: TaskModel, vocabulary: Vocabulary
) -> None:
    """Write the model as it is now, and its backbone alone, into ``export/``."""
    state = portable_state(model)
    metadata = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "library_version": __version__,
        "task": config.task.name,
        "architecture": model.backbone.name,
        "vocabulary": json.dumps(asdict(vocabulary)),
        "config": files.to_yaml(replace(config, out=Path("."))),
        "sha256": content_hash(state),
    }
    write_bytes(run.model, save(state, metadata))
    own = model.backbone
    # A c4 detector calls c4 its last map, but holds and trains all stages.
    whole = Backbone(own.body, name=own.name, parts=own.parts, stage=STAGES[-1])
    hashed = {"method": f"{config.task.name} fine-tuning", "config_hash": files.fingerprint(config)}
    save_backbone(whole, run.backbone, hashed)


def _find(path: Path) -> Path:
    if path.is_file():
        return path
    run = RunDirectory(path)
    if not run.model.is_file():
        raise not_exported(find(path), run.model)
    return run.model


def _read_image(path: Path) -> Tensor:
    try:
        return decode(path.read_bytes())
    except (DecodeError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path} cannot be read: {reason}. Name another image.") from None
