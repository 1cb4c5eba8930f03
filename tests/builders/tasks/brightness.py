"""A whole task in one file, as a plug-in would bring it: is an image bright or dark?"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clove_ssl.atomic import write_text
from clove_ssl.backbones.build import Backbone
from clove_ssl.config.bases import TaskConfig
from clove_ssl.config.finetuning import FinetuneConfig, LabelledDataConfig, SolverConfig
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.data.decode import decode
from clove_ssl.data.order import ImageOrder
from clove_ssl.data.scenes import SceneSource
from clove_ssl.layers.transfers import map_tensors
from clove_ssl.tasks.base import Reading, Task, TaskData, TaskModel
from clove_ssl.tasks.scoring.scores import Scores, ScoreTable
from clove_ssl.tasks.training_parts import parameter_groups

FILE = "bright.json"
SPLITS: tuple[Literal["train", "test"], ...] = ("train", "test")


@dataclass(frozen=True, kw_only=True)
class BrightnessConfig(TaskConfig):
    """Whether an image is bright; share of right answers."""

    name: ClassVar[str] = "brightness"

    @classmethod
    def protocol(cls, out: Path, backbone: str) -> FinetuneConfig:
        """Two steps."""
        solver = SolverConfig(batch_size=2, iterations=2, steps=(), warmup_iterations=0)
        return FinetuneConfig(out=out, backbone=backbone, task=cls(), solver=solver)

    def build(self) -> Task:
        return BrightnessTask()


@dataclass(frozen=True)
class Batch:
    """Images of one size."""

    images: Tensor  # (B, 3, H, W) uint8
    keys: Tensor  # (B,)

    @property
    def bright(self) -> Tensor:
        """The truth: (B,) int64."""
        return (self.images.float().mean((1, 2, 3)) > 128).long()

    def to(self, device: torch.device, *, non_blocking: bool = False) -> Batch:
        return map_tensors(self, lambda each: each.to(device, non_blocking=non_blocking))


class BrightnessNetwork(TaskModel):
    """A linear layer on the mean of the last map."""

    predictors = ("predictor",)

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self._backbone = backbone
        self.predictor = nn.Linear(backbone.out_channels, 2)

    @property
    def backbone(self) -> Backbone:
        return self._backbone

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.predictor(self.backbone.features(images / 255).mean((2, 3)))
        return logits

    def losses(self, batch: Batch, *, step: int) -> dict[str, Tensor]:
        return {"loss_bright": F.cross_entropy(self(batch.images), batch.bright)}

    def predict(self, batch: Batch) -> list[tuple[int, int]]:
        answers = self(batch.images).argmax(1).tolist()
        return list(zip(batch.keys.tolist(), answers, strict=True))

    def parameter_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        return parameter_groups(self, weight_decay)

    def facts(self) -> Mapping[str, str]:
        return {"head": "a linear layer"}


class BrightnessTask(Task):
    """Nothing here but what ``tasks/base.py`` asks for."""

    def write_scenes(self, config: LabelledDataConfig, folder: Path) -> None:
        for split, count in zip(SPLITS, (config.scenes_train, config.scenes_test), strict=True):
            (folder / split).mkdir(parents=True, exist_ok=True)
            source = SceneSource(count, config.scenes_size, split)
            for index in range(count):
                (folder / split / f"{index:05d}.ppm").write_bytes(source.read(index))

    def read_scenes(self, folder: Path) -> TaskData:
        train, test = (sorted((folder / split).iterdir()) for split in SPLITS)
        return TaskData(train, test, len(train), len(test), ("dark", "bright"))

    def read(self, config: LabelledDataConfig) -> TaskData:
        assert config.root is not None
        return self.read_scenes(config.root)

    def read_test(self, config: LabelledDataConfig, scenes: Path) -> list[Path]:
        return sorted(((config.root or scenes) / "test").iterdir())

    def take_fraction(self, data: TaskData, share: float, *, seed: int) -> TaskData:
        count = max(1, round(share * data.train_images))
        return replace(data, train=data.train[:count], train_images=count)

    def backbone_config(self, architecture: str) -> BackboneConfig:
        return BackboneConfig(name=architecture)

    def build_model(self, backbone: Backbone, data: TaskData, *, seed: int) -> BrightnessNetwork:
        return BrightnessNetwork(backbone)

    def training_batches(self, data: TaskData, reading: Reading) -> Iterable[Batch]:
        order = ImageOrder(data.train_images, reading.seed)
        batches = reading.batch_order(order)
        for step in range(reading.start_step, reading.stop_step):
            for number in range(batches.micro_batches):
                indices = batches.draws(step, number).indices.tolist()
                yield _batch(data.train, indices)

    def test_batches(self, data: TaskData, reading: Reading) -> Iterable[Batch]:
        for index in range(reading.rank, data.test_images, reading.processes):
            yield _batch(data.test, [index])

    def write_predictions(
        self, folder: Path, predictions: Sequence[Any], data: TaskData, *, header: Mapping[str, Any]
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / FILE, json.dumps(dict(predictions)))

    def score(self, folder: Path, test: Sequence[Path]) -> Scores:
        answers = json.loads((folder / FILE).read_text())
        truth = _batch(test, range(len(test))).bright.tolist()
        right = [answers[str(index)] == each for index, each in enumerate(truth)]
        summary = {"accuracy": sum(right) / len(right)}
        return Scores((ScoreTable("brightness", "right answers", summary, {}),), len(right))

    def paint(self, folder: Path, test: Any, pictures: Path, *, count: int) -> list[Path]:
        return []


def _batch(files: Sequence[Path], indices: Sequence[int]) -> Batch:
    images = [decode(files[index].read_bytes()) for index in indices]
    return Batch(torch.stack(images), torch.tensor(indices))
