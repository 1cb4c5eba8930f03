"""The tasks for a user's own classes: the detector and the segmenter of the published ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clove_ssl.config.bases import TaskConfig
from clove_ssl.config.detection import DetectorConfig, KeypointHeadConfig
from clove_ssl.config.finetuning import LabelledDataConfig
from clove_ssl.data.labels.pixels import SomeLabels
from clove_ssl.errors import UserError
from clove_ssl.tasks.base import Reading, TaskData, Vocabulary
from clove_ssl.tasks.detection.task import FILE, DetectionTask
from clove_ssl.tasks.labels.samples import DetectionDataset, Sample
from clove_ssl.tasks.loading.images import InputSizes, TrainingImages, check_images
from clove_ssl.tasks.loading.order import GroupedOrder
from clove_ssl.tasks.loading.selection import Labels, check_testable, select_targets
from clove_ssl.tasks.own.config import OwnDetectionConfig, SegmentConfig
from clove_ssl.tasks.own.dataset import TRAIN, VAL, OwnData
from clove_ssl.tasks.own.describe import describe
from clove_ssl.tasks.own.finding import open_own, open_to_judge
from clove_ssl.tasks.own.fractions import Part, draw_part
from clove_ssl.tasks.own.pixel_labels import OwnPixels, ReducedPixels, map_problems, pixel_labels
from clove_ssl.tasks.own.sizes import (
    choose_anchors,
    choose_side,
    longest_side,
    training_sides,
)
from clove_ssl.tasks.predictions import read_detections
from clove_ssl.tasks.scoring.judging import Kind, score_predictions
from clove_ssl.tasks.scoring.scores import Scores
from clove_ssl.tasks.semantic.loading import SemanticBatch, load_crops
from clove_ssl.tasks.semantic.task import SemanticTask

PERSON_KEYPOINTS = 17
SIGMA = 0.07
"""Tolerance of a keypoint of one's own: the mean of those that COCO has for persons."""
CPU_REGIONS = 64
"""Regions of an image that a box head learns from on a CPU."""
CPU_PROPOSALS = 200
"""Regions of an image that are looked at on a CPU."""
CPU_KEYPOINTS = KeypointHeadConfig(convs=4, width=256)
"""An eighth of the work of the published head."""
_KINDS: dict[Labels, tuple[Kind, ...]] = {
    "boxes": ("box",),
    "masks": ("mask", "box"),
    "keypoints": ("keypoints", "box"),
}


class OwnDetectionTask(DetectionTask):
    """Boxes of a user's own classes, with masks or keypoints."""

    config: OwnDetectionConfig

    def write_scenes(self, config: LabelledDataConfig, folder: Path) -> None:
        """Own classes need own data."""
        raise _no_data(self.config.name)

    def read(self, config: LabelledDataConfig) -> TaskData:
        """Read data in whatever format they are, and look at every image."""
        data = open_own(config, task=self.config.name)
        labels, said = self._available(data)
        val = _only_with(data.detection(VAL), labels)
        selection = select_targets(data.detection(TRAIN), labels)
        check_testable(val, labels)
        for part in (selection.dataset, val):
            check_images(part.samples)
        return TaskData(
            train=selection.dataset,
            test=val,
            train_images=len(selection.dataset.samples),
            test_images=len(val.samples),
            class_names=data.class_names,
            notes=(*describe(data), f"  training on: {selection.describe()}"),
            problems=(*data.problems, *said),
        )

    def read_test(self, config: LabelledDataConfig, scenes: Path) -> DetectionDataset:
        """The images that the model is judged by."""
        data = open_own(config, task=self.config.name)
        return _only_with(data.detection(VAL), self._available(data)[0])

    def read_other(
        self, config: LabelledDataConfig, scenes: Path, vocabulary: Vocabulary
    ) -> DetectionDataset:
        """Images of other data, whose classes are known by their names."""
        data = open_to_judge(config, vocabulary.class_names, task=self.config.name)
        found = _only_with(data.detection(VAL), self.labels)
        test = replace(
            found,
            category_ids=vocabulary.category_ids,
            keypoint_names=found.keypoint_names or vocabulary.keypoint_names,
        )
        check_testable(test, self.labels)
        check_images(test.samples)
        return test

    def take_fraction(self, data: TaskData, share: float, *, seed: int) -> TaskData:
        """The same data with a part of the training images, which shows all classes if it can."""
        samples: Sequence[Sample] = data.train.samples
        present = [{thing.category for thing in sample.annotations} for sample in samples]
        part = draw_part(present, share, seed=seed)
        kept = replace(data.train, samples=tuple(samples[index] for index in part.indices))
        return _reduced(data, kept, part)

    def adapted(self, data: TaskData, *, on_gpu: bool) -> TaskConfig:
        """Sides, anchors and heads that fit the data and the device."""
        samples: Sequence[Sample] = data.train.samples
        config = self.config
        side = config.side or choose_side(samples, on_gpu=on_gpu)
        sides = _not_given(
            config,
            train_sides=training_sides(side),
            test_side=side,
            longest=longest_side(samples, side),
        )
        detector = replace(
            self._detector(on_gpu=on_gpu),
            masks=config.detector.masks and _has_masks(data.train),
        )
        detector = replace(
            detector,
            proposals=replace(detector.proposals, anchor_sizes=self._anchors(samples, side)),
        )
        return replace(config, side=side, detector=detector, **sides)

    def choices(self) -> dict[str, str]:
        """Sides and anchors."""
        sides, anchors = self.config.train_sides, self.config.detector.proposals.anchor_sizes
        told = f"{min(sides)} to {max(sides)} in training, at most {self.config.longest} long"
        return {
            "short side": f"{self.config.test_side} pixels ({told})",
            "anchors": " ".join(f"{size:g}" for size in anchors),
        }

    def training_images(
        self, dataset: DetectionDataset, sizes: InputSizes, order: GroupedOrder
    ) -> TrainingImages:
        """Training images; keypoints whose names tell no sides are not mirrored."""
        mirror = self.labels != "keypoints" or _tells_sides(dataset.keypoint_names)
        return TrainingImages(dataset, self.labels, sizes=sizes, order=order, mirror=mirror)

    def score(self, folder: Path, test: DetectionDataset) -> Scores:
        """COCO's average precision, that of the richest labels first."""
        points = len(test.keypoint_names)
        sigmas = None if points == PERSON_KEYPOINTS else [SIGMA] * points
        return score_predictions(
            _KINDS[self.labels], test, read_detections(folder / FILE), sigmas=sigmas
        )

    def _detector(self, *, on_gpu: bool) -> DetectorConfig:
        """The detector; on a CPU with fewer regions, and a lighter head for keypoints.

        These take most of the time there: the published head needs seconds for a crowded image.
        """
        given, usual = self.config.detector, type(self.config)().detector
        if on_gpu or (given.box, given.proposals) != (usual.box, usual.proposals):
            return given
        return replace(
            given,
            box=replace(given.box, regions_per_image=CPU_REGIONS),
            proposals=replace(given.proposals, test_after_nms=CPU_PROPOSALS),
            keypoint=CPU_KEYPOINTS if given.keypoint == usual.keypoint else given.keypoint,
        )

    def _anchors(self, samples: Sequence[Sample], side: int) -> tuple[float, ...]:
        usual = type(self.config)().detector.proposals.anchor_sizes
        given = self.config.detector.proposals.anchor_sizes
        return choose_anchors(samples, side) if given == usual else given

    def _available(self, data: OwnData) -> tuple[Labels, tuple[str, ...]]:
        """What can be learned of what the task is for, and what has to be said about it."""
        if not data.has_boxes:
            raise UserError(
                f"{data.root} ({data.format}) has no objects, only classes of pixels. Type: clove "
                "finetune segment"
            )
        if self.labels == "keypoints" and not data.has_keypoints:
            raise UserError(
                f"No object of {data.root} ({data.format}) has a keypoint. Expected COCO files "
                "with keypoints, or a data.yaml with kpt_shape; for boxes type: clove finetune "
                "detect"
            )
        if self.labels != "masks":
            return self.labels, ()
        if data.has_masks:
            return self.labels, tuple(_without_masks(data))
        said = f"No object of {data.root} has a mask, so boxes alone are learned, as detect does."
        return "boxes", (said,)


class OwnSemanticTask(SemanticTask):
    """A class for every pixel of a user's own images."""

    config: SegmentConfig

    def write_scenes(self, config: LabelledDataConfig, folder: Path) -> None:
        """Own classes need own data."""
        raise _no_data(self.config.name)

    def read(self, config: LabelledDataConfig) -> TaskData:
        """Read data in whatever format they are, and look at every mask."""
        data = open_own(config, task="instances")
        parts = {split: pixel_labels(data, split) for split in (TRAIN, VAL)}
        train, val = parts[TRAIN], parts[VAL]
        problems = map_problems(parts, root=data.root) if data.has_maps else []
        for split, part in parts.items():
            whole = len(data.items[split])
            if len(part) < whole:
                problems.append(
                    f"{whole - len(part):,} of {whole:,} {split} images are left out: "
                    + ("they have no mask." if data.has_maps else "an object has no outline.")
                )
        for part in (train, val):
            check_images(part.samples)
        return TaskData(
            train=train,
            test=val,
            train_images=len(train),
            test_images=len(val),
            class_names=train.class_names,
            notes=(*describe(data), f"  training on: {len(train):,} images with label maps"),
            problems=(*data.problems, *problems),
        )

    def read_test(self, config: LabelledDataConfig, scenes: Path) -> OwnPixels:  # type: ignore[override]
        """The images that the model is judged by."""
        return pixel_labels(open_own(config, task="instances"), VAL)

    def read_other(
        self, config: LabelledDataConfig, scenes: Path, vocabulary: Vocabulary
    ) -> OwnPixels:
        """Images of other data; classes of objects are known by name, those of masks by number."""
        data = open_to_judge(config, vocabulary.class_names[1:], task="instances")
        test = pixel_labels(data, VAL)
        test.present_classes()  # looks at every mask, so a bad one is told before the work
        return test

    def take_fraction(self, data: TaskData, share: float, *, seed: int) -> TaskData:
        """The same data with a part of the training images, which shows all classes if it can."""
        part = draw_part(data.train.present_classes(), share, seed=seed)
        return _reduced(data, SomeLabels(data.train, part.indices), part)

    def adapted(self, data: TaskData, *, on_gpu: bool) -> TaskConfig:
        """Sides that fit the data and the device."""
        config = self.config
        samples = data.train.samples if isinstance(data.train, OwnPixels) else data.test.samples
        side = config.side or choose_side(samples, on_gpu=on_gpu)
        sides = _not_given(config, crop=side, test_longest=longest_side(samples, side))
        return replace(config, side=side, **sides)

    def choices(self) -> dict[str, str]:
        """Sides."""
        told = f"tests at most {self.config.test_longest} long"
        return {"crops": f"{self.config.crop} x {self.config.crop} pixels ({told})"}

    def training_batches(self, data: TaskData, reading: Reading) -> Iterable[SemanticBatch]:
        """Random crops of images that are brought to a common size first."""
        train: OwnPixels | SomeLabels = data.train
        source = train if self.config.side is None else ReducedPixels(train, self.config.side)
        return load_crops(source, self.config, reading)


def _not_given(config: TaskConfig, **values: Any) -> dict[str, Any]:
    """Those values of fields that nobody has changed."""
    usual = type(config)()
    return {n: v for n, v in values.items() if getattr(config, n) == getattr(usual, n)}


def _reduced(data: TaskData, train: Any, part: Part) -> TaskData:
    """Less to learn from; what was wrong with the whole has been said by now."""
    return replace(
        data,
        train=train,
        train_images=len(part.indices),
        problems=part.problems(data.class_names),
    )


def _no_data(task: str) -> UserError:
    return UserError(
        f"{task} is for your own classes and has no built-in scenes. Give --data with a folder or "
        "file of labelled images; to try fine-tuning without any, type: clove finetune voc-c4"
    )


def _without_masks(data: OwnData) -> Iterator[str]:
    """What becomes of objects that have a box alone where masks are learned."""
    for split in (TRAIN, VAL):
        things = [thing for thing in data.annotations(split) if not thing.crowd]
        bare = sum(not thing.mask for thing in things)
        if bare:
            yield (
                f"{bare:,} of {len(things):,} {split} objects have no mask and are left out, as if "
                "nothing were there. Draw their outlines; or learn boxes: clove finetune detect."
            )


def _has_masks(dataset: DetectionDataset) -> bool:
    return any(thing.mask for sample in dataset.samples for thing in sample.annotations)


def _only_with(dataset: DetectionDataset, labels: Labels) -> DetectionDataset:
    """The objects that have what is learned; mask scores cannot judge those without a mask."""
    if labels != "masks":
        return dataset
    samples = tuple(
        replace(sample, annotations=tuple(thing for thing in sample.annotations if thing.mask))
        for sample in dataset.samples
    )
    return replace(dataset, samples=samples)


def _tells_sides(names: Sequence[str]) -> bool:
    """Whether names say which points change places in a mirror; a single point needs no name."""
    return len(names) == 1 or any(name.lower().startswith(("left", "right")) for name in names)
