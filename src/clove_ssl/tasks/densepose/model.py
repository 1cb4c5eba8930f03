"""A DensePose detector as the engine sees it."""

from __future__ import annotations

from collections.abc import Mapping

from clove_ssl.tasks.densepose.detector import DensePoseDetector
from clove_ssl.tasks.densepose.reader import DensePoseDataset
from clove_ssl.tasks.densepose.records import IUV, encode_surface
from clove_ssl.tasks.detection.model import DetectionNetwork
from clove_ssl.tasks.predictions import Record, detection_records
from clove_ssl.tasks.rcnn.instances import DetectionBatch


class DensePoseNetwork(DetectionNetwork):
    """Trains a DensePose detector, and writes what it finds as records.

    Args:
        detector: The model.
        test: Whose images the keys of test batches count.
    """

    headline = ("loss_densepose_I", "loss_densepose_U")
    predictors = (*DetectionNetwork.predictors, "person", "part", "u", "v")

    def __init__(self, detector: DensePoseDetector, test: DensePoseDataset) -> None:
        super().__init__(detector, test)

    def predict(self, batch: DetectionBatch) -> list[Record]:
        """The persons of all images of a test batch."""
        assert isinstance(self.detector, DensePoseDetector)
        records: list[Record] = []
        for key, found in zip(batch.keys.tolist(), self.detector.detect(batch), strict=True):
            own = detection_records(
                found, self._test.samples[key], category_ids=self._test.category_ids
            )
            for record, surface in zip(own, found.surfaces, strict=False):  # only the best have one
                record[IUV] = encode_surface(surface)
            records += own
        return records

    def facts(self) -> Mapping[str, str]:
        """What the self-check shows."""
        assert isinstance(self.detector, DensePoseDetector)
        head = self.detector.surface_config
        facts = dict(super().facts())
        return facts | {
            "detector": f"{facts['detector']}, surface",
            "surface head": f"{head.convs} convolutions of {head.width} channels on regions that "
            f"overlap a person by more than {head.overlap_above:g}",
            "surface losses": f"{head.person_weight:g} person, {head.part_weight:g} part, "
            f"{head.surface_weight:g} U and V, summed over {head.surface_images} images",
        }
