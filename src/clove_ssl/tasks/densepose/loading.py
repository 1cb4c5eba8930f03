"""Training images whose persons have labels of their surface.

Labels live in the boxes of their persons, so resizing does not touch them. Mirroring does: places
on the body change sides, and x runs the other way.

Dimensions: L labelled persons of an image, P points of them all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from clove_ssl.tasks.densepose.labels import SIDE, PersonLabels
from clove_ssl.tasks.densepose.losses import DensePoseBatch, SurfaceLabels
from clove_ssl.tasks.densepose.reader import DensePoseDataset, labels_of
from clove_ssl.tasks.densepose.surfaces import Mirror, Places
from clove_ssl.tasks.loading.images import InputSizes, Refusal, TrainingImages
from clove_ssl.tasks.loading.order import GroupedOrder
from clove_ssl.tasks.loading.targets import Packed

Labels = list[PersonLabels | None]  # of all persons of an image


class DensePoseImages(TrainingImages):
    """Batches by the positions of their images, with labels; half of the images are mirrored.

    Nothing is mirrored where the dataset does not say how.

    Args:
        dataset: Images that all have targets.
        sizes: Lengths of the short side to draw from.
        order: Which image stands at a position.
    """

    def __init__(
        self, dataset: DensePoseDataset, *, sizes: InputSizes, order: GroupedOrder
    ) -> None:
        mirrors = dataset.mirror is not None
        super().__init__(dataset, "boxes", sizes=sizes, order=order, mirror=mirrors)
        self._labels: Packed[Labels] = Packed(
            [labels_of(person) for person in sample.annotations] for sample in dataset.samples
        )
        self._body = dataset.mirror

    def __getitem__(self, positions: range) -> DensePoseBatch | Refusal:
        batch = super().__getitem__(positions)
        if isinstance(batch, Refusal):
            return batch
        draws = self._order.draws(positions.start, positions.stop)
        images = zip(draws.epochs.tolist(), draws.indices.tolist(), strict=True)
        labels = []
        for (epoch, index), size, objects in zip(
            images, batch.original_sizes, batch.targets, strict=True
        ):
            persons = self._labels[index]
            # The reader keeps only boxes of which something is left in the image.
            assert len(persons) == len(objects)
            mirrored = self._place(epoch, index, size).mirrored
            labels.append(pack_labels(persons, mirror=self._body if mirrored else None))
        return DensePoseBatch.of(batch, labels)


def pack_labels(persons: Sequence[PersonLabels | None], *, mirror: Mirror | None) -> SurfaceLabels:
    """The labels of the persons of an image, seen in a mirror where one is given."""
    rows = [row for row, labels in enumerate(persons) if labels is not None]
    known = [labels for labels in persons if labels is not None]
    if mirror is not None:
        known = [_mirrored(labels, mirror) for labels in known]
    masks = [_mask(labels, mirrored=mirror is not None) for labels in known]
    counts = [len(labels.points) for labels in known]
    places = [np.zeros((0, 2)), *(labels.points for labels in known)]
    parts = [np.zeros(0, np.int64), *(labels.places.parts for labels in known)]
    surface = [np.zeros((0, 2)), *(labels.places.surface for labels in known)]
    return SurfaceLabels(
        persons=torch.tensor(rows, dtype=torch.int64),
        masks=torch.from_numpy(np.array(masks, bool).reshape(-1, SIDE, SIDE)),
        has_mask=torch.tensor([labels.runs is not None for labels in known], dtype=torch.bool),
        owners=torch.from_numpy(np.repeat(np.arange(len(known)), counts)),
        places=torch.from_numpy(np.concatenate(places).astype(np.float32)),
        parts=torch.from_numpy(np.concatenate(parts)),
        surface=torch.from_numpy(np.concatenate(surface).astype(np.float32)),
    )


def _mirrored(labels: PersonLabels, body: Mirror) -> PersonLabels:
    """Points and places in a mirror; the mask stays, since it is text."""
    points = labels.points * (-1, 1) + (SIDE, 0)
    places: Places = body.mirrored(labels.places)
    return PersonLabels(points, places, labels.runs)


def _mask(
    labels: PersonLabels, *, mirrored: bool
) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    mask = labels.mask()
    if mask is None:
        return np.zeros((SIDE, SIDE), bool)
    return mask[:, ::-1] if mirrored else mask
