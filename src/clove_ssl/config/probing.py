"""What ``clove probe`` and ``clove embed`` can be told, and how a run probes itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from clove_ssl.config.ranges import BatchSize, ImageCount, Positive, Range, Ranged, Seed, Steps
from clove_ssl.errors import UserError

ProbeName = Literal[
    "correspondence", "spread", "knn", "linear", "segmentation", "retrieval", "keypoints"
]
ProbedSide = Annotated[int, Range(32, 2**13)]
"""Side of an image that still has a cell of every stage."""

USUAL_SIDE = 128
"""Side of probed images where neither the user nor a run says another."""

Ranking = Literal[
    "none", "correspondence", "knn", "linear", "segmentation", "retrieval", "keypoints"
]


@dataclass(frozen=True, kw_only=True)
class ProbeConfig(Ranged):
    """Measure frozen features, with whatever labels the images have."""

    backbones: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Runs or backbone files; ``random:NAME`` for a network with random weights."""
    data: str | None = None
    """Labelled or plain images: ``scenes``, a folder of VOC, Cityscapes or COCO, a folder with
    ``images`` and ``masks``, class folders, or any folder, list or .tar shards of images. By
    default the images that the first run was trained on, or ``scenes`` if no run is named."""
    train: str | None = None
    """Class folders or .tar shards with classes to train the classifiers on; ``data`` is then used
    only for testing."""
    probe: tuple[ProbeName, ...] = ()
    """Probes to run; by default all for which the images have labels."""
    test_split: str | None = None
    """Split to score on, if the data has splits; by default ``test``, or ``val`` if there is none.
    Classifiers are trained on the split ``train``."""
    size: ProbedSide | None = None
    """Side to which images are resized; by default 128, or the side of the large views on a run's
    own images."""
    stages: tuple[str, ...] = ()
    """Feature maps used together, such as c4 c5; by default the one that the first backbone that is
    not random was trained for."""
    train_images: Annotated[int, Range(2, 10**9)] | None = None
    """Largest number of training images; by default 400 with masks or keypoints, 10,000 with
    classes."""
    test_images: ImageCount | None = None
    """Largest number of test images; by default 200 with masks, 500 with keypoints or without
    labels, 10,000 with classes."""
    out: Path | None = None
    """A .json file for the scores, besides ``probes.json`` of every run that is named; scores of
    other probes in it are kept."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    seed: Seed = 0
    """Determines the weights of ``random:`` networks, views, resamples and the split for choosing
    the penalty."""


@dataclass(frozen=True, kw_only=True)
class RunProbeConfig(Ranged):
    """How a run measures its own features during training; see docs/probes.md."""

    every_epochs: Positive | None = 10.0
    """Epochs between probes; fractions are allowed, and None turns probes off. The last probe is at
    the end of the run; a run shorter than this has none, unless ``keep_best`` is set."""
    min_steps: Steps = 500
    """Least number of steps between probes, since epochs over few images are short."""
    names: tuple[ProbeName, ...] = ("correspondence", "spread")
    """Probes to run; those that need labels take them from ``data``."""
    data: str | None = None
    """Images to probe, as for ``clove probe``; by default images of the run itself, or for a run on
    scenes, scenes that are not trained on."""
    images: Annotated[int, Range(2, 10**9)] = 256
    """Largest number of images to score on."""
    size: ProbedSide | None = None
    """Side of the images; by default that of the method's large views."""
    keep_best: Ranking = "none"
    """Keep the backbone that scores best in this probe as ``export/best_backbone.safetensors``."""

    def __post_init__(self) -> None:
        if self.keep_best != "none" and self.every_epochs is None:
            raise UserError(
                f"probe.keep_best is {self.keep_best}, but probe.every_epochs None turns probes "
                "off. Leave out one of them."
            )
        if self.keep_best != "none" and self.keep_best not in self.names:
            raise UserError(
                f"probe.keep_best is {self.keep_best}, which is not among the probes of the run: "
                f"{', '.join(self.names)}. Name it: --probe.names {' '.join(self.names)} "
                f"{self.keep_best}"
            )

    def count(self, total_steps: int, steps_per_epoch: float) -> int:
        """How many probes a run makes."""
        if self.every_epochs is None:
            return 0
        interval = max(self.min_steps, self.every_epochs * steps_per_epoch)
        fewest = 1 if self.keep_best != "none" and total_steps else 0
        # A hundredth more, since whole epochs are rarely whole steps.
        return max(fewest, int(total_steps / interval + 0.01))


@dataclass(frozen=True, kw_only=True)
class EmbedConfig(Ranged):
    """Write the features of images to a file."""

    backbone: Annotated[str, tyro.conf.Positional]
    """A run or a backbone file."""
    data: str
    """Folder of images, text file with one path per line, pattern of .tar shards, or
    ``scenes``."""
    out: Path
    """File to write: .npz, or .parquet with the extra ``parquet``."""
    kind: Literal["global", "dense"] = "global"
    """One feature per image (the mean over its cells), or the whole map."""
    stage: str | None = None
    """Feature map, such as c4; by default the one that was pre-trained."""
    size: ProbedSide = 224
    """Side to which images are resized, whatever their shape."""
    dtype: Literal["float32", "float16"] = "float32"
    """Number format of the features in the file."""
    batch_size: BatchSize = 64
    """Images processed together."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
