"""All probes of a backbone: which ones the images allow, and their scores.

Images are loaded once and shown to every backbone, so that scores can be compared.

=================  ======================  ==========================================
probe              scores                 needs
=================  ======================  ==========================================
correspondence     correspondence          images
spread             effective_rank,         images
                   alignment, uniformity
knn, linear        knn, linear             classes
segmentation,      segmentation,           masks
retrieval          retrieval
keypoints          keypoints               persons with keypoints
=================  ======================  ==========================================
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar

import torch
from torch import Tensor

from clove_ssl.backbones.build import Backbone
from clove_ssl.config.probing import ProbeName
from clove_ssl.console import Console, Work
from clove_ssl.errors import UserError, counted
from clove_ssl.probes import dense as probes
from clove_ssl.probes.classifiers import Classified, knn, linear, load_classified
from clove_ssl.probes.data import ProbeData
from clove_ssl.probes.features import FrozenFeatures, Pictures, load_pictures
from clove_ssl.probes.keypoints import Persons, crop_persons, keypoint_transfer
from clove_ssl.probes.scores import Score
from clove_ssl.probes.views import (
    ViewPairs,
    calibration_images,
    correspondence,
    draw_pairs,
    look_at_pairs,
    spread_scores,
)

T = TypeVar("T")

MAX_CELLS = 50_000
FEWEST_CLASSIFIED = 10

_CLASSIFIERS = {"knn": knn, "linear": linear}
_SEGMENTERS = {"segmentation": probes.segmentation, "retrieval": probes.retrieval}
_NEEDS: dict[ProbeName, str] = {
    "correspondence": "images",
    "spread": "images",
    "knn": "classes",
    "linear": "classes",
    "segmentation": "masks",
    "retrieval": "masks",
    "keypoints": "persons",
}
TITLES = {
    "correspondence": "correspondence",
    "effective_rank": "effective rank",
    "alignment": "alignment",
    "uniformity": "uniformity",
    "knn": "k-NN accuracy",
    "linear": "linear accuracy",
    "segmentation": "linear mIoU",
    "retrieval": "k-NN mIoU",
    "keypoints": "keypoint PCK",
}
"""What scores are called in tables."""


@dataclass(frozen=True)
class Amounts:
    """How many images are used at most."""

    pairs: int = 500
    classes: tuple[int, int] = (10_000, 10_000)  # to learn from, to score on
    masks: tuple[int, int] = (400, 200)
    persons: tuple[int, int] = (400, 500)


def _telling(work: Work) -> Callable[[int], None]:
    return lambda count: work.doing(f"{counted(count, 'image')} seen")


class ProbeSuite:
    """The probes of one set of images.

    Args:
        data: What the images offer.
        size: Side in pixels to which images are scaled.
        names: Probes to run; all that are possible if there are none.
        amounts: How many images are used.
        seed: Draws views, cells, pairs of persons and resamples.
    """

    def __init__(
        self,
        data: ProbeData,
        *,
        size: int,
        names: Sequence[ProbeName] = (),
        amounts: Amounts | None = None,
        seed: int = 0,
    ) -> None:
        self._data, self._size, self._seed = data, size, seed
        self._amounts = amounts or Amounts()
        possible = self._possible()
        for name in names:
            if name not in possible:
                raise UserError(
                    f"The probe {name} needs {_NEEDS[name]}, which these images do not have. "
                    f"Possible are: {', '.join(possible)}. Give --data other images."
                )
        self.names = tuple(names) or tuple(possible)

    def _possible(self) -> list[ProbeName]:
        allowed = [name for name, need in _NEEDS.items() if getattr(self._data, need) is not None]
        if min(self._data.images.count, self._amounts.pairs) < 2:
            allowed.remove("spread")  # one image cannot be spread
        return allowed

    def measure(
        self, backbone: Backbone, stages: Sequence[str], *, device: torch.device | str
    ) -> dict[str, Score]:
        """The scores of a backbone, which is left as it is."""
        scores: dict[str, Score] = {}
        for need, measure in (
            ("images", self._look_at_views),
            ("classes", self._classify),
            ("masks", self._segment),
            ("persons", self._find_keypoints),
        ):
            wanted = [name for name in self.names if _NEEDS[name] == need]
            if wanted:
                with Console().working(f"Probing {', '.join(wanted)}") as work:
                    extract = FrozenFeatures(backbone, stages, device=device, seen=_telling(work))
                    scores |= measure(extract, wanted)
        return scores

    def _look_at_views(
        self, extract: FrozenFeatures, wanted: Sequence[ProbeName]
    ) -> dict[str, Score]:
        extract.calibrate(calibration_images(self._pairs))
        found = look_at_pairs(extract, self._pairs)
        scores = {}
        if "correspondence" in wanted:
            scores["correspondence"] = correspondence(found, seed=self._seed)
        if "spread" in wanted:
            scores |= spread_scores(found, seed=self._seed)
        return scores

    def _classify(self, extract: FrozenFeatures, wanted: Sequence[ProbeName]) -> dict[str, Score]:
        known, asked = self._classified
        if len(known.labels) < FEWEST_CLASSIFIED:
            raise UserError(
                f"{len(known.labels)} training images with a class are too few; the probe needs "
                f"{FEWEST_CLASSIFIED}. Give --train more images, or a larger --train-images."
            )
        extract.calibrate(known.images)
        features = extract.pooled(known.images), extract.pooled(asked.images)
        return {
            name: _CLASSIFIERS[name](
                features[0],
                known.labels,
                features[1],
                asked.labels,
                classes=len(known.class_names),
                seed=self._seed,
            )
            for name in wanted
        }

    def _segment(self, extract: FrozenFeatures, wanted: Sequence[ProbeName]) -> dict[str, Score]:
        learned, judged = self._pictures
        extract.calibrate(learned.images)
        generator = torch.Generator().manual_seed(self._seed)
        cells = probes.collect_cells(extract, learned, limit=MAX_CELLS, generator=generator)
        scores: dict[str, Score] = {}
        for name in wanted:
            result = _SEGMENTERS[name](extract, cells, judged, generator=generator)
            extra = {"accuracy": result.accuracy}
            scores[name] = Score(result.miou, result.interval, extra=extra)
        return scores

    def _find_keypoints(
        self, extract: FrozenFeatures, wanted: Sequence[ProbeName]
    ) -> dict[str, Score]:
        known, asked = self._persons
        extract.calibrate(known.images)
        return {name: keypoint_transfer(extract, known, asked, seed=self._seed) for name in wanted}

    @cached_property
    def _pairs(self) -> ViewPairs:
        limit = self._amounts.pairs
        return draw_pairs(self._data.images, limit=limit, size=self._size, seed=self._seed)

    @cached_property
    def _classified(self) -> tuple[Classified, Classified]:
        assert self._data.classes is not None  # or none of its probes would be asked for
        names = self._data.classes[0].labels.class_names
        load = partial(load_classified, class_names=names, size=self._size)
        known, asked = _both(load, self._data.classes, self._amounts.classes)
        _warn_of_shared(known.images, asked.images)
        return known, asked

    @cached_property
    def _pictures(self) -> tuple[Pictures, Pictures]:
        assert self._data.masks is not None
        probes.check_sets(*self._data.masks)
        load = partial(load_pictures, size=self._size)
        learned, judged = _both(load, self._data.masks, self._amounts.masks)
        _warn_of_shared(learned.images, judged.images)
        return learned, judged

    @cached_property
    def _persons(self) -> tuple[Persons, Persons]:
        assert self._data.persons is not None
        load = partial(crop_persons, size=self._size)
        return _both(load, self._data.persons(), self._amounts.persons)


def _both(
    load: Callable[..., T], parts: tuple[object, object], limits: tuple[int, int]
) -> tuple[T, T]:
    """What is learned from and what is judged, at most so many images of each."""
    learned, judged = (load(part, limit=limit) for part, limit in zip(parts, limits, strict=True))
    return learned, judged


def _warn_of_shared(learned: Tensor, judged: Tensor) -> None:
    """Say how many images are judged that were learned from, under whatever name they lie."""
    known = set(map(_pixels, learned))
    shared = sum(_pixels(image) in known for image in judged)
    if shared:
        Console().warn(
            f"{shared:,} of the {counted(len(judged), 'test image')} look exactly like an image "
            "that is learned from, so scores are too high. Take them out of one of the two sets."
        )


def _pixels(image: Tensor) -> bytes:
    """A short text that two images share when they are equal."""
    return hashlib.blake2b(image.numpy().tobytes(), digest_size=16).digest()
