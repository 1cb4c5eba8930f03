"""Which images and objects a detector learns from.

As in the published protocols: crowds are no targets, images without a target are left out, and so
are images without a single labelled keypoint where keypoints are learned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from clove_ssl.data.order import ImageOrder
from clove_ssl.errors import UserError
from clove_ssl.tasks.labels.samples import Annotation, DetectionDataset, Sample

Labels = Literal["boxes", "masks", "keypoints"]


@dataclass(frozen=True)
class Selection:
    """A dataset to learn from, and what of the original is not in it."""

    dataset: DetectionDataset
    images_left_out: int
    crowds_left_out: int
    objects_without_mask: int

    def describe(self) -> str:
        """One line for people."""
        objects = sum(len(sample.annotations) for sample in self.dataset.samples)
        line = f"{len(self.dataset.samples):,} images with {objects:,} objects"
        reasons = {
            "images without a target": self.images_left_out,
            "crowds": self.crowds_left_out,
            "objects without a mask": self.objects_without_mask,
        }
        left = [f"{count:,} {what}" for what, count in reasons.items() if count]
        return f"{line}; left out: {', '.join(left)}" if left else line


def select_targets(dataset: DetectionDataset, labels: Labels) -> Selection:
    """Keep what a detector can learn these labels from."""
    if labels == "keypoints":
        _check_keypoints(dataset)
    samples = []
    for sample in dataset.samples:
        targets = tuple(thing for thing in sample.annotations if _is_target(thing, labels))
        if targets and (labels != "keypoints" or any(map(_has_keypoints, targets))):
            samples.append(replace(sample, annotations=targets))
    if not samples:
        raise UserError(_nothing_left(dataset, labels, "training"))
    everything = [thing for sample in dataset.samples for thing in sample.annotations]
    crowds = sum(thing.crowd for thing in everything)
    bare = sum(not thing.crowd and not thing.mask for thing in everything)
    return Selection(
        replace(dataset, samples=tuple(samples)),
        images_left_out=len(dataset.samples) - len(samples),
        crowds_left_out=crowds,
        objects_without_mask=bare if labels == "masks" else 0,
    )


def check_testable(dataset: DetectionDataset, labels: Labels) -> None:
    """Refuse a test set that cannot be scored, before anything is trained for it."""
    if labels == "keypoints":
        _check_keypoints(dataset)
    things = [(sample, thing) for sample in dataset.samples for thing in sample.annotations]
    if not any(_is_target(thing, "boxes") for _, thing in things):
        raise UserError(_nothing_left(dataset, "boxes", "test"))
    if labels == "keypoints" and not any(_has_keypoints(thing) for _, thing in things):
        raise UserError(_nothing_left(dataset, labels, "test"))
    for sample, thing in things if labels == "masks" else []:
        if not thing.mask:
            raise UserError(
                f"Annotation {thing.identifier} of the test image {sample.image} has no "
                "segmentation, which mask scores need. Give a test set that was annotated for this "
                "task, or --task.detector.no-masks for boxes alone, or type clove finetune detect."
            )


def take_fraction(dataset: DetectionDataset, share: float, *, seed: int) -> DetectionDataset:
    """A random share of the images, at least one; a larger share holds every smaller one."""
    if not 0 < share <= 1:
        raise UserError(
            f"fraction={share:g} is no share of the training images. Give a number above 0 and up "
            "to 1, such as --fraction 0.1."
        )
    count = max(1, round(share * len(dataset.samples)))
    chosen = sorted(ImageOrder(len(dataset.samples), seed).draws(0, count).indices.tolist())
    return replace(dataset, samples=tuple(dataset.samples[index] for index in chosen))


def _check_keypoints(dataset: DetectionDataset) -> None:
    """All objects of a keypoint detector have the same points, and their names tell sides."""
    count = len(dataset.keypoint_names)
    for sample in dataset.samples:
        for thing in sample.annotations:
            if thing.keypoints and len(thing.keypoints) != count:
                raise UserError(
                    f"Annotation {thing.identifier} of {sample.image} has {len(thing.keypoints)} "
                    f"keypoints, but the categories name {count}. Expected one list of keypoints "
                    "for all objects; name them in the category of the annotation file."
                )


def _is_target(thing: Annotation, labels: Labels) -> bool:
    return not thing.crowd and (labels != "masks" or bool(thing.mask))


def _has_keypoints(thing: Annotation) -> bool:
    return any(visible > 0 for _, _, visible in thing.keypoints or ())


def _nothing_left(dataset: DetectionDataset, labels: Labels, split: str) -> str:
    first: Sample | None = next(iter(dataset.samples), None)
    where = f" (the first image is {first.image})" if first else ""
    what = {
        "boxes": "an object that is no crowd",
        "masks": "an object with a mask (segmentation)",
        "keypoints": "an object with a labelled keypoint",
    }[labels]
    step = "Give annotations that were made for this task."
    if labels == "masks":
        step = (
            "Give annotations with masks, or learn boxes alone: clove finetune detect does so by "
            "itself, this task with --task.detector.no-masks."
        )
    elif labels == "keypoints":
        step = "Give annotations with keypoints, or learn boxes alone: clove finetune detect."
    if any(thing.crowd for sample in dataset.samples for thing in sample.annotations):
        step = (
            "Where a program wrote iscrowd: 1 for single objects, as some do for every mask, write "
            "0 instead."
        )
    return f"None of the {len(dataset.samples)} {split} images has {what}{where}. {step}"
