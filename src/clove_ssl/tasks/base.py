"""What the engine asks of a downstream task.

A task reads its data, builds a model around a backbone, brings batches, and turns what the model
says about test images into files that are scored later, without a model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from clove_ssl.backbones.build import Backbone
from clove_ssl.config.bases import TaskConfig
from clove_ssl.config.finetuning import LabelledDataConfig
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.data.order import BatchOrder, ImageOrder
from clove_ssl.errors import UserError
from clove_ssl.layers.captured import Recorder
from clove_ssl.tasks.scoring.scores import Scores


@dataclass(frozen=True)
class TaskData:
    """Images to learn from and to be tested on, in the form that the task reads."""

    train: Any
    test: Any
    train_images: int
    test_images: int
    class_names: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """What a user should know about the data, such as what was left out."""
    problems: tuple[str, ...] = ()
    """What a user should look at, since it may be a mistake."""


@dataclass(frozen=True)
class Vocabulary:
    """What the outputs of a model mean."""

    class_names: tuple[str, ...]
    category_ids: tuple[int, ...] = ()
    """What the files of the data call these classes, where they have numbers of their own."""
    keypoint_names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Which batches a process reads, and how."""

    seed: int
    batch_size: int
    """Images of a step over all processes."""
    micro_batch: int
    """Images of one forward pass of one process."""
    processes: int
    rank: int
    start_step: int
    stop_step: int
    workers: int
    prefetch: int
    pin_memory: bool

    @classmethod
    def alone(
        cls,
        *,
        batch: int,
        steps: int,
        seed: int = 0,
        workers: int = 0,
        prefetch: int = 2,
        pin_memory: bool = False,
    ) -> Reading:
        """The first steps of a run with one process, which takes whole batches."""
        return cls(
            seed=seed,
            batch_size=batch,
            micro_batch=batch,
            processes=1,
            rank=0,
            start_step=0,
            stop_step=steps,
            workers=workers,
            prefetch=prefetch,
            pin_memory=pin_memory,
        )

    def between(self, start_step: int, stop_step: int) -> Reading:
        """The batches of other steps."""
        return replace(self, start_step=start_step, stop_step=stop_step)

    def batch_order(self, order: ImageOrder) -> BatchOrder:
        """Which positions of an order this process takes at a step."""
        return BatchOrder(
            order,
            batch_size=self.batch_size,
            processes=self.processes,
            rank=self.rank,
            micro_batch=self.micro_batch,
        )


class TaskModel(nn.Module):
    """A backbone with a head for a task."""

    headline: tuple[str, ...] = ()
    """Losses worth a place on the progress line, besides their sum."""
    predictors: tuple[str, ...] = ()
    """Names of the last layers, whose initial spread is part of a protocol."""

    @property
    def backbone(self) -> Backbone:
        """The network that is fine-tuned."""
        raise NotImplementedError

    def losses(self, batch: Any, *, step: int) -> dict[str, Tensor]:
        """The losses of a batch by name; their sum is minimised."""
        raise NotImplementedError

    def predict(self, batch: Any) -> list[Any]:
        """What the model says about every image of a test batch, on the host."""
        raise NotImplementedError

    def begin_prediction(self, batch: Any) -> Callable[[], list[Any]]:
        """Let the device predict a test batch; what this returns gives what :meth:`predict` gives.

        The rest, such as coding masks, is work of the host, and may be done by another thread
        while the device is at the next batch.
        """
        found = self.predict(batch)
        return lambda: found

    def why_not_captured(self) -> str:
        """Why no part of a step can be captured as CUDA graphs; empty if one can."""
        return "nothing says which part of a step of this task runs the same kernels"

    def capture(
        self, recorder: Recorder, *, accumulates: bool, warn: Callable[[str], None]
    ) -> None:
        """Capture that part from now on, whose gradients may be added up over micro-batches."""
        raise NotImplementedError

    def parameter_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """Trainable parameters with the decay that each of them gets."""
        raise NotImplementedError

    def facts(self) -> Mapping[str, str]:
        """What the self-check shows of a model besides what can be measured."""
        raise NotImplementedError


class Task(ABC):
    """A downstream task."""

    @abstractmethod
    def write_scenes(self, config: LabelledDataConfig, folder: Path) -> None:
        """Write the built-in scenes in the layout that the task reads; again is no harm."""

    @abstractmethod
    def read_scenes(self, folder: Path) -> TaskData:
        """Read what :meth:`write_scenes` wrote."""

    @abstractmethod
    def read(self, config: LabelledDataConfig) -> TaskData:
        """Read the files of a user, and refuse what cannot be learned from."""

    @abstractmethod
    def read_test(self, config: LabelledDataConfig, scenes: Path) -> Any:
        """The test part alone, which is all that scoring needs."""

    def read_other(self, config: LabelledDataConfig, scenes: Path, vocabulary: Vocabulary) -> Any:
        """The test part of other data than a model learned from, in the classes of the model."""
        return self.read_test(config, scenes)

    def other_data(self, test: Any, vocabulary: Vocabulary) -> TaskData:
        """What :meth:`read_other` gave, with nothing to learn from; refuses other classes."""
        return replace(self.without_data(vocabulary), test=test, test_images=len(test))

    @abstractmethod
    def take_fraction(self, data: TaskData, share: float, *, seed: int) -> TaskData:
        """The same data with a random share of the training images."""

    @abstractmethod
    def backbone_config(self, architecture: str) -> BackboneConfig:
        """How the backbone of the task is built; refuses networks that it cannot use."""

    @abstractmethod
    def build_model(self, backbone: Backbone, data: TaskData, *, seed: int) -> TaskModel:
        """The model with a fresh head."""

    @abstractmethod
    def training_batches(self, data: TaskData, reading: Reading) -> Iterable[Any]:
        """Training batches in an order that the seed alone decides."""

    @abstractmethod
    def test_batches(self, data: TaskData, reading: Reading) -> Iterable[Any]:
        """Every test image once, over all processes."""

    @abstractmethod
    def write_predictions(
        self,
        folder: Path,
        predictions: Sequence[Any],
        data: TaskData,
        *,
        header: Mapping[str, Any],
    ) -> None:
        """Write the predictions of all test images; complete or not at all."""

    @abstractmethod
    def score(self, folder: Path, test: Any) -> Scores:
        """Score the predictions that lie in ``folder``."""

    def why_not_scored(self) -> str:
        """What :meth:`score` misses on this machine, and what to type; empty if nothing."""
        return ""

    @abstractmethod
    def paint(self, folder: Path, test: Any, pictures: Path, *, count: int) -> list[Path]:
        """Paint predictions beside the truth for some test images."""

    def adapted(self, data: TaskData, *, on_gpu: bool) -> TaskConfig:
        """The config of the task with what the data and the device decide; of own tasks alone."""
        raise NotImplementedError(f"{type(self).__name__} has a protocol that nothing changes")

    def choices(self) -> dict[str, str]:
        """What was adapted, in words; nothing where a protocol decides."""
        return {}

    def vocabulary(self, data: TaskData) -> Vocabulary:
        """What the outputs of a model that learns from ``data`` mean."""
        return Vocabulary(data.class_names)

    def without_data(self, vocabulary: Vocabulary) -> TaskData:
        """What :meth:`build_model` needs to know where there are no images."""
        return TaskData(None, None, 0, 0, vocabulary.class_names)

    def predict_image(self, model: TaskModel, image: Tensor) -> Any:
        """What a model in eval mode says about one image, uint8 (3, H, W) RGB, on the host."""
        raise UserError(
            f"A model of {type(self).__name__} does not look at single images. Score it on other "
            "data instead: clove evaluate RUN --data OTHER"
        )

    def predict_images(self, model: TaskModel, images: Sequence[Tensor]) -> list[Any]:
        """The same for several images; the result does not depend on which come together."""
        return [self.predict_image(model, image) for image in images]
