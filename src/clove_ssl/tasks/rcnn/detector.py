"""Faster, Mask and Keypoint R-CNN around a backbone, as Detectron2 0.6 computes them.

Training and tests go through the same parts: pixels to maps, maps to proposals, regions to
classes and boxes, and, for those that show an object, to masks and keypoints.

Dimensions: B images, R regions over all images, F of them on objects, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from clove_ssl.backbones.build import Backbone
from clove_ssl.config.detection import DetectorConfig
from clove_ssl.errors import UserError
from clove_ssl.layers.captured import CapturedFunction, Recorder
from clove_ssl.layers.fp32 import at_least_fp32
from clove_ssl.layers.transfers import send_like, send_tables
from clove_ssl.tasks.labels.polygons import PackedOutlines
from clove_ssl.tasks.rcnn.boxes import clip_boxes, has_area
from clove_ssl.tasks.rcnn.draws import STAGES, Priorities, RandomPriorities
from clove_ssl.tasks.rcnn.features import C4Features, PyramidFeatures
from clove_ssl.tasks.rcnn.first_stage import FirstInputs, FirstStage
from clove_ssl.tasks.rcnn.instances import DetectionBatch, ImageDetections
from clove_ssl.tasks.rcnn.objects import ObjectTable, roomy_shape, tight_shape, whole_numbers
from clove_ssl.tasks.rcnn.pixels import resize_boxes, stack_images
from clove_ssl.tasks.rcnn.proposals.choose import Proposals, ProposalTable, table_of
from clove_ssl.tasks.rcnn.proposals.stage import RegionProposer, Scored
from clove_ssl.tasks.rcnn.regions.keypoints import find_keypoints
from clove_ssl.tasks.rcnn.regions.losses import (
    RegionTask,
    keypoint_term,
    mask_term,
    plan_losses,
)
from clove_ssl.tasks.rcnn.regions.masks import paste_masks
from clove_ssl.tasks.rcnn.regions.pooling import batched_regions
from clove_ssl.tasks.rcnn.regions.roi_heads import (
    BoxPredictor,
    Detections,
    KeypointHead,
    MaskHead,
    box_sums,
    detect,
)
from clove_ssl.tasks.rcnn.regions.targets import (
    DrawnRegions,
    TrainingRegions,
    draw_regions,
    outlines_of,
    table_objects,
)
from clove_ssl.tasks.training_parts import freeze_norms, freeze_stages


class Detector(nn.Module):
    """A two-stage detector.

    Args:
        config: Everything but the numbers of classes and keypoints.
        backbone: The network; the detector takes it over.
        classes: Classes without the background.
        keypoints: Keypoints of an object.
        priorities: How anchors and regions are chosen for the losses.
    """

    def __init__(
        self,
        config: DetectorConfig,
        backbone: Backbone,
        *,
        classes: int,
        keypoints: int,
        priorities: Priorities,
    ) -> None:
        super().__init__()
        self.config = config
        self.classes = classes
        self.priorities = priorities
        kind = C4Features if config.kind == "c4" else PyramidFeatures
        self.features = features = kind(config, backbone)
        self.proposer = RegionProposer(
            config.proposals, features.level_channels, strides=features.strides
        )
        self.box_predictor = BoxPredictor(features.vector_length, classes)
        self.mask_head = (
            MaskHead(config.mask, features.map_channels, num_classes=classes, norm=config.head_norm)
            if config.masks
            else None
        )
        self.keypoint_head = (
            KeypointHead(config.keypoint, features.map_channels, num_keypoints=keypoints)
            if config.keypoints
            else None
        )
        self.captured: CapturedFunction | None = None
        self.captured_boxes: CapturedFunction | None = None

    def capture(
        self, recorder: Recorder, *, accumulates: bool, warn: Callable[[str], None]
    ) -> None:
        """Record the parts of training that have the same sizes for all batches of a canvas."""
        self.features.fuse_small()
        self.proposer.keeps_anchors = False  # a graph would write over them
        self.captured = CapturedFunction(
            lambda *inputs: self.first_stage(self.inputs_of(inputs)).flat(),
            [*self.features.parameters(), *self.proposer.parameters()],
            recorder,
            accumulates=accumulates,
            warn=warn,
        )
        # Most batches have as many regions as the second stage asks for.
        self.captured_boxes = CapturedFunction(
            self.box_part,
            [*self.features.parameters(), *self.box_predictor.parameters()],
            recorder.beside(),
            accumulates=accumulates,
            warn=warn,
            read_in_place=len(self.features.strides),  # the maps of the first stage
        )

    @property
    def backbone(self) -> Backbone:
        """The network that was fine-tuned."""
        return self.features.backbone

    def losses(self, batch: DetectionBatch, *, step: int) -> dict[str, Tensor]:
        """The losses of a batch by name; their sum is what is trained."""
        first = self._first_stage_of(batch, step=step)
        drawn = first.drawn.send()
        # What needs no numbers, while they are on their way and the host would wait.
        outlines = None if self.mask_head is None else outlines_of(batch.targets)
        return {
            "loss_rpn_cls": first.losses.objectness,
            "loss_rpn_loc": first.losses.offsets,
            **self.region_losses(first.levels, drawn.read(), batch, outlines),
        }

    @torch.no_grad()
    def detect(self, batch: DetectionBatch) -> list[ImageDetections]:
        """What is in the images, in the pixels of the originals."""
        found = self.find(batch)
        return [
            in_original_pixels(each, seen=seen, original=original)
            for each, seen, original in zip(found, batch.sizes, batch.original_sizes, strict=True)
        ]

    def maps(self, batch: DetectionBatch) -> list[Tensor]:
        """The feature maps of all levels, the finest first."""
        levels: list[Tensor] = self.features(self._pixels(batch))
        return levels

    def first_stage(self, inputs: FirstInputs) -> FirstStage:
        """Maps, the losses of the first stage, and the regions that the second one learns from.

        Nothing here has a size that depends on the contents of the inputs.
        """
        levels: list[Tensor] = self.features(inputs.pixels)
        scored: Scored = self.proposer(levels)
        borders = inputs.borders.to(scored.anchors[0].dtype)
        proposals = self.proposer.propose_table(scored, borders)
        drawn = self._draw(proposals, inputs.objects, inputs.starts[1])
        drawn = drawn._replace(levels=self.features.assign_levels(drawn.regions))
        anchors = sum(len(each) for each in scored.anchors)
        priority = self.priorities.numbers(inputs.starts[0], anchors)
        losses = self.proposer.losses(scored, inputs.objects, priority=priority)
        return FirstStage(levels, losses, drawn)

    def _first_stage_of(self, batch: DetectionBatch, *, step: int) -> FirstStage:
        """The same for a batch, as a replay where there is one."""
        captured = self.captured if self._learns() else None
        inputs = self.first_inputs(batch, step=step, roomy=captured is not None)
        if captured is not None:
            return self.stage_of(captured(*inputs.flat()))
        return self.first_stage(inputs)

    def _learns(self) -> bool:
        """Whether a backward pass will follow, without which replays are of no use."""
        return self.training and torch.is_grad_enabled()

    def inputs_of(self, tensors: Sequence[Tensor]) -> FirstInputs:
        """The inputs of the first stage, as a graph gets them."""
        masks, keypoints = self.mask_head is not None, self.keypoint_head is not None
        return FirstInputs.of_flat(tensors, masks=masks, keypoints=keypoints)

    def stage_of(self, tensors: Sequence[Tensor]) -> FirstStage:
        """What comes of the first stage, as a graph gives it."""
        count = len(self.features.strides)
        return FirstStage.of_flat(tensors, levels=count, keypoints=self.keypoint_head is not None)

    def first_inputs(self, batch: DetectionBatch, *, step: int, roomy: bool) -> FirstInputs:
        """What the first stage learns from; ``roomy`` tables have the same size in most steps."""
        counts = [len(each) for each in batch.targets]
        shape = roomy_shape(counts) if roomy else tight_shape(counts)
        pixels, keys = self._pixels(batch), batch.keys.tolist()
        starts = [self.priorities.starts(keys, step=step, stage=stage) for stage in STAGES]
        borders = [[width, height, width, height] for height, width in batch.sizes]
        tables = [np.array(starts), np.array(borders), *whole_numbers(counts, shape)]
        there = send_tables(tables, pixels.device)  # together, since each copy costs the host
        return FirstInputs(pixels, there[0], there[1], self._table(batch, there[2:]))

    def _table(self, batch: DetectionBatch, numbers: Sequence[Tensor]) -> ObjectTable:
        masks, keypoints = self.mask_head is not None, self.keypoint_head is not None
        return table_objects(batch.targets, numbers, masks=masks, keypoints=keypoints)

    def _pixels(self, batch: DetectionBatch) -> Tensor:
        dtype = self.box_predictor.cls_score.weight.dtype
        return stack_images(batch.images, multiple=self.config.size_multiple, dtype=dtype)

    def draw_regions(
        self, batch: DetectionBatch, proposals: Sequence[Proposals], *, step: int
    ) -> TrainingRegions:
        """The regions of a training step."""
        inputs = self.first_inputs(batch, step=step, roomy=False)
        return self._draw(table_of(proposals), inputs.objects, inputs.starts[1]).send().read()

    def _draw(self, proposals: ProposalTable, objects: ObjectTable, starts: Tensor) -> DrawnRegions:
        count = proposals.boxes.shape[1] + objects.images.shape[1] - 2
        return draw_regions(
            proposals,
            objects,
            self.priorities.numbers(starts, count),
            config=self.config.box,
            num_classes=self.classes,
        )

    def region_losses(
        self,
        levels: Sequence[Tensor],
        regions: TrainingRegions,
        batch: DetectionBatch,
        outlines: PackedOutlines | None = None,
    ) -> dict[str, Tensor]:
        """The losses of the second stage."""
        # The longest work first, so that the device is not waiting while the rest is prepared.
        entropy, distance, *maps = self._box_part_of(levels, regions, batch)
        # What is begun here is read behind the networks, when the device has had time for it.
        task = plan_losses(
            regions,
            batch.targets,
            num_classes=self.classes,
            mask_side=self.features.mask_side if self.mask_head is not None else None,
            keypoints=self.keypoint_head is not None,
            outlines=outlines,
        )
        mask_maps = self._mask_maps(levels, maps, task)
        keypoint_maps = self._keypoint_maps(levels, task)
        everywhere = task.divisors[0]
        losses = {"loss_cls": entropy / everywhere, "loss_box_reg": distance / everywhere}
        if self.mask_head is not None and mask_maps is not None:
            losses["loss_mask"] = mask_term(self.mask_head, mask_maps, task)
        if self.keypoint_head is not None and keypoint_maps is not None:
            losses["loss_keypoint"] = keypoint_term(self.keypoint_head, keypoint_maps, task)
        return losses

    def _box_part_of(
        self, levels: Sequence[Tensor], regions: TrainingRegions, batch: DetectionBatch
    ) -> tuple[Tensor, ...]:
        """The box head on the regions of a batch, as a replay where there is one."""
        targets = regions.offsets_to(batch.targets, num_classes=self.classes)
        own = () if regions.levels is None else (regions.levels,)
        inputs = (*levels, regions.regions, regions.classes, targets, *own)
        if self.captured_boxes is None or not self._learns():
            return self.box_part(*inputs)
        if not self.features.pools_without_waiting(levels, regions.regions):
            return self.box_part(*inputs)
        return self.captured_boxes(*inputs)

    def box_part(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Both losses of boxes as sums over regions, and the maps of these if masks share them.

        In come the maps of all levels, regions (R, 5), their classes (R,) and targets (R, 4), and
        where there are several levels those of the regions (R,).
        """
        count = len(self.features.strides)
        levels, (regions, classes, targets, *own) = inputs[:count], inputs[count:]
        maps = self.features.region_maps(levels, regions, *own)
        logits, offsets = self.predict_boxes(maps)
        sums = box_sums(
            logits, offsets, classes=classes, target=targets, beta=self.config.box.loss_beta
        )
        is_shared = self.mask_head is not None and self.features.shares_maps
        return (*sums, maps) if is_shared else tuple(sums)

    def _mask_maps(
        self, levels: Sequence[Tensor], shared: Sequence[Tensor], task: RegionTask
    ) -> Tensor | None:
        """What the mask head sees, if there is one; it may share the maps of the box head."""
        if self.mask_head is None:
            return None
        if shared:
            return shared[0][task.foreground]
        return self.features.head_maps(levels, task.on_objects.regions, task.on_objects.levels)

    def _keypoint_maps(self, levels: Sequence[Tensor], task: RegionTask) -> Tensor | None:
        """What the keypoint head sees, if there is one."""
        if task.with_keypoints is None:
            return None
        shown = task.with_keypoints
        return self.features.head_maps(levels, shown.regions, shown.levels)

    def predict_boxes(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        """Maps of regions (R, C, S, S) -> class logits (R, K+1) and offsets (R, 4K), in fp32."""
        logits, offsets = self.box_predictor(self.features.region_vectors(maps))
        return at_least_fp32(logits), at_least_fp32(offsets)

    @torch.no_grad()
    def find(self, batch: DetectionBatch) -> list[Found]:
        """What is in the images, in the pixels the detector sees; masks stay in their boxes."""
        return self.find_in(self.maps(batch), batch.sizes)

    @torch.no_grad()
    def find_in(self, levels: list[Tensor], sizes: Sequence[tuple[int, int]]) -> list[Found]:
        """What is in images of these heights and widths, given their feature maps."""
        proposals = self.proposer.propose(self.proposer(levels), sizes)
        boxes = [proposed.boxes for proposed in proposals]
        maps = self.features.region_maps(levels, batched_regions(boxes))
        counts = [len(each) for each in boxes]
        logits, offsets = (torch.split(column, counts) for column in self.predict_boxes(maps))
        read_out = self.config.read_out
        detections = [
            detect(
                *outputs,
                boxes=each,
                image_size=size,
                score_above=read_out.score_above,
                nms_overlap=read_out.nms_overlap,
                count=read_out.detections,
            )
            for *outputs, each, size in zip(logits, offsets, boxes, sizes, strict=True)
        ]
        return self._with_heads(levels, detections)

    def _with_heads(self, levels: Sequence[Tensor], detections: list[Detections]) -> list[Found]:
        """Add masks and keypoints to the detections of all images."""
        counts = [len(each.scores) for each in detections]
        masks: Sequence[Tensor | None] = [None] * len(detections)
        keypoints: Sequence[Tensor | None] = [None] * len(detections)
        if self.mask_head is not None or self.keypoint_head is not None:
            regions = batched_regions([each.boxes for each in detections])
            maps = self.features.head_maps(levels, regions)
            if self.mask_head is not None:
                classes = torch.cat([each.classes for each in detections])
                logits = at_least_fp32(self.mask_head(maps, classes))
                masks = torch.split(logits.sigmoid(), counts)
            if self.keypoint_head is not None:
                points = find_keypoints(at_least_fp32(self.keypoint_head(maps)), regions[:, 1:])
                joined = torch.cat([points.points, points.scores[..., None]], dim=-1)
                keypoints = torch.split(joined, counts)
        return [
            Found(each.boxes, each.scores, each.classes, *heads)
            for each, *heads in zip(detections, masks, keypoints, strict=True)
        ]


def build_detector(
    config: DetectorConfig,
    backbone: Backbone,
    *,
    classes: int,
    keypoints: int = 0,
    seed: int = 0,
) -> Detector:
    """Build a detector with fresh heads around a backbone, and freeze what the config says.

    The weights of the backbone stay as they are; batch norms of the backbone that are frozen keep
    their statistics, so load weights before. Norms are shared between processes by
    ``synchronize_norms``, afterwards.
    """
    if config.keypoints and keypoints < 1:
        raise UserError(
            "The detector has a keypoint head, but the data has no keypoints. Give data with "
            "keypoints, or a detector without that head."
        )
    backbone.requires_grad_(True)
    if config.backbone_norm == "frozen":
        freeze_norms(backbone.body)
    freeze_stages(backbone, config.frozen_stages)
    return Detector(
        config,
        backbone,
        classes=classes,
        keypoints=keypoints,
        priorities=RandomPriorities(seed),
    )


class Found(NamedTuple):
    """What was found in one image, in the pixels that the detector sees, best first."""

    boxes: Tensor  # (D, 4)
    scores: Tensor  # (D,)
    classes: Tensor  # (D,)
    masks: Tensor | None = None  # (D, M, M) probabilities in the box
    keypoints: Tensor | None = None  # (D, P, 3) x, y, score


def in_original_pixels(
    found: Found, *, seen: tuple[int, int], original: tuple[int, int]
) -> ImageDetections:
    """Scale to the original ``(height, width)``, clip there, and drop what has no area left."""
    boxes = clip_boxes(resize_boxes(found.boxes, seen, original), original)  # (D, 4)
    kept = torch.nonzero(has_area(boxes)).squeeze(1)  # what is left of D
    return ImageDetections(
        boxes=boxes[kept],
        scores=found.scores[kept],
        classes=found.classes[kept],
        masks=None
        if found.masks is None
        else paste_masks(found.masks[kept], boxes[kept], image_size=original),
        keypoints=None
        if found.keypoints is None
        else _scaled(found.keypoints[kept], seen=seen, original=original),
    )


def _scaled(keypoints: Tensor, *, seen: tuple[int, int], original: tuple[int, int]) -> Tensor:
    """Keypoints (D, P, 3) with x and y in the original image; scores stay."""
    return keypoints * send_like([original[1] / seen[1], original[0] / seen[0], 1.0], keypoints)
