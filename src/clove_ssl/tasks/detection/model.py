"""A detector as the engine sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from clove_ssl.backbones.build import Backbone
from clove_ssl.layers.captured import Recorder
from clove_ssl.tasks.base import TaskModel
from clove_ssl.tasks.labels.samples import DetectionDataset
from clove_ssl.tasks.predictions import Record, detection_records
from clove_ssl.tasks.rcnn.detector import Detector
from clove_ssl.tasks.rcnn.instances import DetectionBatch, ImageDetections
from clove_ssl.tasks.training_parts import parameter_groups

_STAGES = ("stem", "c2", "c3", "c4", "c5")


class DetectionNetwork(TaskModel):
    """Trains a detector, and turns what it finds into records of COCO's result format.

    Args:
        detector: The model.
        test: Whose images the keys of test batches count.
    """

    headline = ("loss_cls", "loss_box_reg")
    predictors: tuple[str, ...] = (
        *("objectness_logits", "anchor_deltas", "cls_score", "bbox_pred", "predictor"),
    )

    def __init__(self, detector: Detector, test: DetectionDataset) -> None:
        super().__init__()
        self.detector = detector
        self._test = test

    @property
    def backbone(self) -> Backbone:
        """The network that is fine-tuned."""
        return self.detector.backbone

    def losses(self, batch: DetectionBatch, *, step: int) -> dict[str, Tensor]:
        """The losses of both stages by name."""
        return self.detector.losses(batch, step=step)

    def predict(self, batch: DetectionBatch) -> list[Record]:
        """The detections of all images of a test batch."""
        return self.begin_prediction(batch)()

    def begin_prediction(self, batch: DetectionBatch) -> Callable[[], list[Record]]:
        """Find the objects of a test batch; the result turns them into records."""
        found = self.detector.detect(batch)
        return lambda: self.records(batch.keys, found)

    def records(self, keys: Tensor, found: Sequence[ImageDetections]) -> list[Record]:
        """The detections of the test images with these keys (B,), on the host."""
        records: list[Record] = []
        for key, each in zip(keys.tolist(), found, strict=True):
            sample = self._test.samples[key]
            records += detection_records(each, sample, category_ids=self._test.category_ids)
        return records

    def why_not_captured(self) -> str:
        """Every detector has a part that follows from the pixels of a batch alone."""
        return ""

    def capture(
        self, recorder: Recorder, *, accumulates: bool, warn: Callable[[str], None]
    ) -> None:
        """Replay first stage, choice of regions and box head for sizes that come often."""
        self.detector.capture(recorder, accumulates=accumulates, warn=warn)

    def parameter_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """Norms get no decay, biases do."""
        return parameter_groups(self, weight_decay)

    def facts(self) -> Mapping[str, str]:
        """What the self-check shows."""
        config = self.detector.config
        known = {"boxes": True, "masks": config.masks, "keypoints": config.keypoints}
        heads = [head for head, is_there in known.items() if is_there]
        frozen = _STAGES[: config.frozen_stages]
        return {
            "frozen stages": ", ".join(frozen) or "none",
            "detector": f"{config.kind} with {', '.join(heads)}",
        }
