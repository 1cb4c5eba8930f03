"""A fine-tuned model as a file, and back: what a run leaves for images of a user's own.

``export/model.safetensors`` holds the weights that were scored, norm statistics included (those of
a checkpoint are still the running ones), and in its metadata the config of the run and the
meaning of its outputs, so the file alone is enough.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors import SafetensorError, safe_open
from torch import Tensor

from clove_ssl import __version__
from clove_ssl.backbones.build import STAGES, Backbone, build_backbone, outlined
from clove_ssl.config import files
from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.config.json_files import checked
from clove_ssl.data.decode import DecodeError, decode, pixels_of_picture
from clove_ssl.data.whole_files import read_whole
from clove_ssl.errors import UserError
from clove_ssl.runs.directory import RunDirectory, find, not_exported, read_finetuning
from clove_ssl.tasks.base import Task, TaskData, TaskModel, Vocabulary
from clove_ssl.training.processes import choose_device
from clove_ssl.weights.safetensors_file import (
    content_hash,
    portable_state,
    read_backbone_file,
    save_backbone,
    to_bytes,
    verify,
    write_bytes,
)

FORMAT = "clove-ssl model"
FORMAT_VERSION = 1
_COPY_AGAIN = "Copy it again from where it was made."


AnyImage = str | Path | Image.Image | NDArray[np.uint8] | Tensor
"""A file, a Pillow picture, uint8 (H, W, 3) or (H, W) of NumPy, or a uint8 tensor (3, H, W)."""


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
        self.vocabulary = vocabulary
        self.class_names = vocabulary.class_names
        self.keypoint_names = vocabulary.keypoint_names

    def __call__(self, images: AnyImage | Sequence[AnyImage]) -> Any:
        """What is in an image, or in each of a list of images; see :meth:`predict`."""
        if isinstance(images, list | tuple):
            return self.predict_all(images)
        return self.predict(images)  # type: ignore[arg-type]

    def predict(self, image: AnyImage) -> Any:
        """What is in an image: a file, a Pillow picture, or pixels of type uint8, RGB.

        Detectors give boxes (x0, y0, x1, y1 in pixels of the image), scores, classes (positions in
        ``class_names``), masks, keypoints and surfaces where they have a head for them, best score
        first; segmenters give the class of every pixel (H, W).
        """
        (found,) = self.predict_all([image])
        return found

    @torch.no_grad()
    def predict_all(self, images: Sequence[AnyImage]) -> list[Any]:
        """What is in each of some images; those that become equally large pass together."""
        pixels = [as_pixels(image) for image in images]
        return self.task.predict_images(self.network, pixels)


def as_pixels(image: AnyImage) -> Tensor:
    """An image of any kind as uint8 (3, H, W) RGB on the host."""
    if isinstance(image, str | Path):
        return _read_image(Path(image))
    if isinstance(image, Image.Image):
        if not all(image.size):
            raise UserError(f"A picture of {image.width} x {image.height} pixels shows nothing.")
        try:
            return pixels_of_picture(image)
        except (DecodeError, OSError, ValueError) as error:  # damaged, closed, or of an odd mode
            raise UserError(f"This picture cannot be used: {error}. Convert it to RGB.") from None
    if isinstance(image, np.ndarray):
        return _from_array(image)
    if not isinstance(image, Tensor):
        raise UserError(
            f"A {type(image).__name__} is not an image. Give a path, a Pillow picture, a NumPy "
            "array (H, W, 3), a tensor (3, H, W), or a list of these."
        )
    is_image = image.ndim == 3 and image.shape[0] == 3 and image.numel() > 0
    if not is_image or image.dtype != torch.uint8:
        raise UserError(
            f"An image tensor needs the shape (3, H, W) and uint8 values, RGB, not "
            f"{tuple(image.shape)} of {image.dtype}. Give such a tensor, or a path."
        )
    return image.cpu()


def _from_array(array: NDArray[Any]) -> Tensor:
    if array.ndim == 2:
        array = np.repeat(array[..., None], 3, axis=2)
    if array.ndim != 3 or array.shape[2] != 3 or array.size == 0 or array.dtype != np.uint8:
        raise UserError(
            f"An image array needs the shape (H, W, 3), or (H, W) for grey, and uint8 values, RGB, "
            f"not {array.shape} of {array.dtype}. For an image from OpenCV, which is BGR, give "
            "image[..., ::-1]."
        )
    return torch.tensor(np.ascontiguousarray(array)).permute(2, 0, 1)


@dataclass(frozen=True)
class StoredModel:
    """What ``export/model.safetensors`` holds."""

    path: Path
    config: FinetuneConfig
    vocabulary: Vocabulary
    architecture: str
    state: dict[str, Tensor]

    def build(self, task: Task, *, device: str | torch.device, test: Any = None) -> FinetunedModel:
        """The model with its weights; ``test`` is what its test batches will count, if any."""
        data = task.without_data(self.vocabulary)
        if test is not None:
            data = replace(data, test=test)
        backbone = build_backbone(task.backbone_config(self.architecture))
        with outlined():  # what the file says may be larger than any memory
            self._check_fit(self._network(task, copy.deepcopy(backbone).to("meta"), data))
        network = self._network(task, backbone, data)
        network.load_state_dict(self.state)
        return FinetunedModel(task, network.to(device), self.vocabulary)

    def _network(self, task: Task, backbone: Backbone, data: TaskData) -> TaskModel:
        return task.build_model(backbone, data, seed=self.config.seed)

    def _check_fit(self, network: TaskModel) -> None:
        """Refuse tensors that are not those of the network that the file describes."""
        expected = {name: tensor.shape for name, tensor in network.state_dict().items()}
        found = {name: tensor.shape for name, tensor in self.state.items()}
        names = sorted(expected.keys() | found.keys())
        odd = [name for name in names if expected.get(name) != found.get(name)]
        if odd:
            raise UserError(
                f"{self.path} describes another model than the one it holds: {odd[0]} and "
                f"{len(odd) - 1} more tensors do not fit. {_COPY_AGAIN}"
            )


def load_finetuned(path_or_run: str | Path, *, device: str = "cpu") -> FinetunedModel:
    """The model of a finished fine-tuning run, or of its ``export/model.safetensors``.

    ``device`` is ``cpu``, ``cuda``, a certain GPU such as ``cuda:1``, or ``auto``.
    """
    place = choose_device(device, local_rank=None)
    stored = read_finetuned(path_or_run)
    return stored.build(stored.config.task.build(), device=place)


def holds_finetuned(path: Path) -> bool:
    """Whether a run or file holds a whole fine-tuned model."""
    file = path if path.is_file() else RunDirectory(path).model
    if not file.is_file() or file.suffix != ".safetensors":
        return False
    try:
        with safe_open(file, framework="pt") as content:
            return bool((content.metadata() or {}).get("format") == FORMAT)
    except (SafetensorError, OSError):  # whoever opens it will say what is wrong
        return False


def read_finetuned(path_or_run: str | Path) -> StoredModel:
    """What the model of a run is made of."""
    path = _find(Path(path_or_run))
    state, metadata = read_backbone_file(path)
    if metadata.get("format") != FORMAT:
        raise UserError(
            f"{path} holds no fine-tuned model. Give a run of clove finetune, or its "
            "export/model.safetensors; backbones are opened by load_backbone."
        )
    verify(path, state, metadata, newest=FORMAT_VERSION)
    missing = [name for name in ("config", "vocabulary", "architecture") if name not in metadata]
    if missing:
        raise UserError(f"{path} has no {missing[0]} in its metadata. {_COPY_AGAIN}")
    config = files.parse(FinetuneConfig, metadata["config"], where=path)
    vocabulary = _read_vocabulary(metadata["vocabulary"], path)
    return StoredModel(path, config, vocabulary, metadata["architecture"], state)


class _VocabularyContent(TypedDict):
    class_names: list[str]
    category_ids: list[int]
    keypoint_names: list[str]


def _read_vocabulary(text: str, path: Path) -> Vocabulary:
    """What outputs mean: names of classes, a number for each of them or none, and points."""
    try:
        known: _VocabularyContent = checked(json.loads(text), _VocabularyContent)
    except (ValueError, RecursionError) as error:
        raise UserError(f"The vocabulary of {path} is damaged: {error}. {_COPY_AGAIN}") from None
    names, numbers = tuple(known["class_names"]), tuple(known["category_ids"])
    if not names or (numbers and not len(set(numbers)) == len(numbers) == len(names)):
        raise UserError(
            f"The vocabulary of {path} has {len(names)} classes with {len(numbers)} numbers, "
            f"{len(set(numbers))} of them different. Expected one for each. {_COPY_AGAIN}"
        )
    return Vocabulary(names, numbers, tuple(known["keypoint_names"]))


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
    write_bytes(run.model, to_bytes(state, metadata))
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
        read_finetuning(find(path))  # a pre-training run has no such file
        raise not_exported(run, run.model)
    return run.model


def _read_image(path: Path) -> Tensor:
    try:
        return decode(read_whole(path))
    except (DecodeError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path} cannot be read: {reason}. Name another image.") from None
