"""The regions that a training step looks at, over all images, and what they should become.

The objects of a batch are counted through: those of the first image, then those of the second.

Dimensions: B images, G objects of the batch, R regions, K classes, M x M pixels of a mask,
P keypoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torchvision.ops import roi_align

from clove_ssl.config.detection import BoxHeadConfig
from clove_ssl.layers.transfers import HostCopy, send_tables
from clove_ssl.tasks.labels.polygons import (
    PackedOutlines,
    begin_masks,
    join_outlines,
    pack_outlines,
)
from clove_ssl.tasks.rcnn.instances import ImageTargets
from clove_ssl.tasks.rcnn.objects import ObjectTable, join_rows, tight_shape, whole_numbers
from clove_ssl.tasks.rcnn.proposals.choose import ProposalTable, refuse_divergence
from clove_ssl.tasks.rcnn.regions.keypoints import regions_with_keypoints
from clove_ssl.tasks.rcnn.regions.roi_heads import (
    LabelledRegions,
    label_regions,
    offset_targets,
    sample_regions,
)


@dataclass(frozen=True)
class RegionRows:
    """Which regions of a step show objects, and how much there is to draw for them."""

    foreground: Tensor  # (F,) rows of the regions
    visible: Tensor | None  # (V,) rows of those with a visible keypoint, if there are keypoints
    of_images: tuple[int, ...]  # F of every image
    outline_sizes: tuple[int, int]  # corners and polygons of F objects
    counts: Tensor  # (2,) int64, R and F, on the device


class TrainingRegions(NamedTuple):
    """Sampled regions of all images."""

    regions: Tensor  # (R, 5) image, x1, y1, x2, y2
    classes: Tensor  # (R,) K = background
    objects: Tensor  # (R,) rows of the batch's objects; anything for background
    rows: RegionRows | None = None  # which of them show what, where that is known already
    offsets: Tensor | None = None  # (R, 4) to their objects, 0 for background, where known
    levels: Tensor | None = None  # (R,) that they are pooled from, where known

    @property
    def boxes(self) -> Tensor:
        """(R, 4)."""
        return self.regions[:, 1:]

    def offsets_to(self, targets: Sequence[ImageTargets], *, num_classes: int) -> Tensor:
        """The offsets to the objects of a batch, as they are known, or else computed: (R, 4)."""
        if self.offsets is not None:
            return self.offsets
        truth = object_boxes(targets, self)
        return offset_targets(self.boxes, truth, self.classes, num_classes=num_classes)

    def take(self, chosen: Tensor | slice) -> TrainingRegions:
        """The chosen rows, without their offsets."""
        return TrainingRegions(
            self.regions[chosen],
            self.classes[chosen],
            self.objects[chosen],
            levels=None if self.levels is None else self.levels[chosen],
        )


class DrawnRegions(NamedTuple):
    """Regions of a step in tables of fixed length, those that are used first."""

    regions: Tensor  # (T, 5) image, x1, y1, x2, y2
    classes: Tensor  # (T,)
    objects: Tensor  # (T,)
    foreground: Tensor  # (T,) rows of the table, those that show objects first
    numbers: (
        Tensor  # (6 + B,) int64: used, shown, finite, visible, corners, polygons, shown of images
    )
    offsets: Tensor  # (T, 4) to the objects, 0 for background
    visible: Tensor | None = None  # (T,) as ``foreground``, with a visible keypoint
    levels: Tensor | None = None  # (T,) that regions are pooled from, if there are several

    def send(self) -> RegionsOnTheirWay:
        """Begin to copy the numbers to the host."""
        return RegionsOnTheirWay(self, HostCopy(self.numbers))


@dataclass(frozen=True)
class RegionsOnTheirWay:
    """Regions whose numbers are copied to the host.

    What is queued until they are read keeps the device busy.
    """

    drawn: DrawnRegions
    numbers: HostCopy

    def read(self) -> TrainingRegions:
        """The regions that are used; refuses proposals that were not finite."""
        used, shown, finite, visible, corners, polygons, *of_images = self.numbers.read()
        refuse_divergence(bool(finite))
        drawn = self.drawn
        rows = RegionRows(
            drawn.foreground[:shown],
            None if drawn.visible is None else drawn.visible[:visible],
            tuple(of_images),
            (corners, polygons),
            drawn.numbers[:2],
        )
        return TrainingRegions(
            drawn.regions[:used],
            drawn.classes[:used],
            drawn.objects[:used],
            rows,
            drawn.offsets[:used],
            None if drawn.levels is None else drawn.levels[:used],
        )


def table_objects(
    targets: Sequence[ImageTargets],
    numbers: Sequence[Tensor],  # as in ``whole_numbers``: owners (2, T), images (B, 2 + W)
    *,
    masks: bool,
    keypoints: bool,
) -> ObjectTable:
    """The objects of all images, with what the heads of a detector need to know about them."""
    owners, images = numbers
    rows = owners.shape[1]
    sizes = [_outlines(each).object_sizes for each in targets] if masks else []
    return ObjectTable(
        join_rows([objects.boxes for objects in targets], rows),
        owners,
        images,
        classes=join_rows([objects.classes for objects in targets], rows),
        outline_sizes=join_rows(sizes, rows, dim=1) if masks else None,
        keypoints=join_rows(_keypoints(targets), rows) if keypoints else None,
    )


def draw_regions(
    proposals: ProposalTable,
    objects: ObjectTable,
    priority: Tensor,  # (B, as many as there are proposals, and objects of an image)
    *,
    config: BoxHeadConfig,
    num_classes: int,
) -> DrawnRegions:
    """Sample regions of every image, the ground truth among them, without a wait."""
    labelled = _label_all(proposals, objects, num_classes=num_classes)  # (B, N)
    sampled = sample_regions(
        labelled,
        priority,
        num_classes=num_classes,
        count=config.regions_per_image,
        foreground_share=config.foreground_share,
    )  # (B, k)
    image = torch.arange(len(priority), device=priority.device)[:, None].expand_as(sampled.rows)
    boxes, classes, rows = (
        column[image, sampled.rows].flatten(0, 1) for column in labelled
    )  # (B * k, ...)
    table = TrainingRegions(
        torch.cat([image.reshape(-1, 1).to(boxes.dtype), boxes], dim=1), classes, rows
    )
    used = sampled.valid.flatten()  # (B * k,)
    # Sampled regions come first from all images, so one slice takes them once their number is
    # known.
    order = _chosen_first(used)
    return find_rows(
        table.take(order),
        objects,
        used=used[order],
        finite=proposals.finite,
        num_classes=num_classes,
    )


def find_rows(
    table: TrainingRegions,  # T, those that are used first
    objects: ObjectTable,
    *,
    used: Tensor,  # (T,) bool
    finite: Tensor,  # () bool, whether the proposals were
    num_classes: int,
) -> DrawnRegions:
    """Find the regions that show objects, and count them."""
    shows = used & (table.classes < num_classes)  # (T,)
    image = table.regions[:, 0]
    places = torch.arange(len(objects.images), device=image.device)[:, None]
    of_images = (shows & (image == places)).sum(dim=1)  # (B,)
    seen = None
    if objects.keypoints is not None:
        own = objects.keypoints[table.objects]  # (T, P, 3)
        seen = shows & regions_with_keypoints(own, table.boxes)
    sizes = used.new_zeros(2, 1).long()
    if objects.outline_sizes is not None:
        sizes = objects.outline_sizes[:, table.objects]  # (2, T)
    numbers = [
        torch.stack([used.sum(), shows.sum(), finite, (shows if seen is None else seen).sum()]),
        torch.where(shows, sizes, 0).sum(dim=1),
        of_images,
    ]
    truth = objects.boxes[table.objects]  # (T, 4)
    return DrawnRegions(
        table.regions,
        table.classes,
        table.objects,
        _chosen_first(shows),
        torch.cat(numbers),
        offset_targets(table.boxes, truth, table.classes, num_classes=num_classes),
        None if seen is None else _chosen_first(seen),
    )


def _chosen_first(flags: Tensor) -> Tensor:
    """All rows (T,), those with a flag first, as ``nonzero`` gives them but without a wait."""
    # Stable: regions of an image stay together and in order, which sums over them depend on.
    return flags.to(torch.uint8).argsort(descending=True, stable=True)  # GPUs may not sort flags


def _label_all(
    proposals: ProposalTable, objects: ObjectTable, *, num_classes: int
) -> LabelledRegions:
    """The labels of the regions of all images, whose objects are counted through: (B, N).

    Objects stand behind the proposals of their image, wherever these end, because places decide
    which regions are drawn. Images with fewer regions are filled up with some of the class -1.
    """
    assert objects.classes is not None
    truth = objects.by_image(objects.boxes)  # (B, W, 4)
    boxes = with_ground_truth(proposals, truth)  # (B, N, 4)
    labelled = label_regions(
        boxes, truth, objects.by_image(objects.classes), num_classes=num_classes
    )
    counts = proposals.counts + objects.counts  # (B,)
    beyond = torch.arange(boxes.shape[1], device=boxes.device) >= counts[:, None]  # (B, N)
    # Background may point at a row that only fills up its image.
    matched = labelled.matched.where(labelled.classes != num_classes, 0)
    return LabelledRegions(
        boxes, labelled.classes.masked_fill(beyond, -1), matched + objects.firsts[:, None]
    )


def with_ground_truth(proposals: ProposalTable, truth: Tensor) -> Tensor:
    """Proposals of every image with the ground truth (B, G, 4) right behind them: (B, N, 4)."""
    truth = truth.to(proposals.boxes.dtype)
    # The truth among the regions: in the first steps no proposal covers an object, and the second
    # stage would learn from background alone.
    joined = torch.cat([proposals.boxes, torch.zeros_like(truth)], dim=1)  # (B, N, 4)
    place = proposals.counts[:, None] + torch.arange(truth.shape[1], device=truth.device)  # (B, G)
    # Right behind the last proposal of each image: priorities go by place, and must not depend on
    # how far other images of the batch are filled up.
    return joined.scatter_(1, place[..., None].expand(-1, -1, 4), truth)


def object_boxes(targets: Sequence[ImageTargets], chosen: TrainingRegions) -> Tensor:
    """The boxes of the objects of some regions; 0 where an image has none: (R, 4)."""
    # Background of an image without objects may point one place behind the last object.
    return join_rows([each.boxes for each in targets], sum(map(len, targets)) + 1)[chosen.objects]


def object_keypoints(targets: Sequence[ImageTargets], chosen: TrainingRegions) -> Tensor:
    """The keypoints of the objects of some foreground regions: (R, P, 3)."""
    known = _keypoints(targets)
    return join_rows(known, sum(map(len, known)) + 1)[chosen.objects]


def _keypoints(targets: Sequence[ImageTargets]) -> list[Tensor]:
    known = [objects.keypoints for objects in targets if objects.keypoints is not None]
    if len(known) != len(targets):
        raise ValueError("a keypoint detector is trained on images whose objects have keypoints")
    return known


class ObjectMasks:
    """The masks of the objects of F foreground regions, begun at once and read later.

    Args:
        targets: The objects of all images.
        outlines: Those of them that have polygons; see :func:`outlines_of`.
        chosen: The regions, those of the first image first.
        rows: How many there are in every image, and how much there is to draw.
        size: Pixels of a side of a mask.
    """

    def __init__(
        self,
        targets: Sequence[ImageTargets],
        outlines: PackedOutlines,
        chosen: TrainingRegions,
        rows: RegionRows,
        *,
        size: int,
    ) -> None:
        self._begun = begin_masks(
            outlines, chosen.objects, chosen.boxes, size=size, totals=rows.outline_sizes
        )
        self._targets, self._chosen, self._rows, self._size = targets, chosen, rows, size

    def read(self) -> Tensor:
        """The masks in the boxes of the regions: (F, M, M) bool."""
        masks, end = self._begun.read(), 0
        images = zip(
            self._targets, _first_objects(self._targets), self._rows.of_images, strict=True
        )
        for objects, first, count in images:
            here, end = slice(end, end + count), end + count
            if objects.bitmaps is not None:
                part = self._chosen.take(here)
                masks[here] = _crop(
                    objects.bitmaps, part.objects - first, part.boxes, size=self._size
                )
        return masks


def rows_of(
    regions: TrainingRegions,
    targets: Sequence[ImageTargets],
    *,
    num_classes: int,
    masks: bool,
    keypoints: bool,
) -> RegionRows:
    """Which regions show what: as it is known, or else asked for, which waits for the device."""
    if regions.rows is not None:
        return regions.rows
    counts = [len(each) for each in targets]
    device = regions.classes.device
    numbers = send_tables(whole_numbers(counts, tight_shape(counts)), device)
    used = torch.ones_like(regions.classes, dtype=torch.bool)
    drawn = find_rows(
        regions,
        table_objects(targets, numbers, masks=masks, keypoints=keypoints),
        used=used,
        finite=used.all(),
        num_classes=num_classes,
    )
    rows = drawn.send().read().rows
    assert rows is not None
    return rows


def _first_objects(targets: Sequence[ImageTargets]) -> list[int]:
    """The number of objects before each image."""
    starts = [0]
    for objects in targets:
        starts.append(starts[-1] + len(objects))
    return starts[:-1]


def outlines_of(targets: Sequence[ImageTargets]) -> PackedOutlines:
    """The outlines of the objects of all images, one image behind the other."""
    return join_outlines([_outlines(objects) for objects in targets])


def _outlines(objects: ImageTargets) -> PackedOutlines:
    """The outlines of the objects of an image; none where they have bitmaps."""
    if objects.outlines is not None:
        return objects.outlines
    if objects.polygons is None and objects.bitmaps is None:
        raise ValueError("a mask detector is trained on images whose objects have masks")
    polygons = [()] * len(objects) if objects.polygons is None else objects.polygons
    return pack_outlines(polygons).to(objects.boxes.device)


def _crop(bitmaps: Tensor, rows: Tensor, boxes: Tensor, *, size: int) -> Tensor:
    """Bitmaps (N, h, w) in boxes (R, 4), at least half covered pixels: (R, size, size) bool."""
    regions = torch.cat([rows[:, None].to(boxes.dtype), boxes], dim=1)  # (R, 5)
    soft: Tensor = roi_align(
        bitmaps[:, None].to(boxes.dtype), regions, output_size=(size, size), aligned=True
    )
    # Detectron2's rule for bitmaps; polygons are filled by another one, see ``labels/polygons.py``.
    return soft[:, 0] >= 0.5
