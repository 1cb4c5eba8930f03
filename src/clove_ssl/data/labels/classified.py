"""The images of a source that belong to a class, numbered anew, each with its class.

Readers attach the class of the image they really read: where a file cannot be
read and the next one takes its place, the class goes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from clove_ssl.data.names import IntArray

if TYPE_CHECKING:
    from clove_ssl.data.scenes import SceneSource
    from clove_ssl.data.sources import ImageSource


class LabelledImages:
    """A source of images that all have a class.

    Args:
        whole: The source with all its images.
        kept: Numbers of the images that have a class, in ``whole``.
        class_of: The class of an image of ``whole``, a position in ``class_names``.
        class_names: All classes.
    """

    def __init__(
        self,
        whole: ImageSource,
        kept: IntArray,
        class_of: Callable[[int], int | None],
        *,
        class_names: Sequence[str],
    ) -> None:
        self.whole = whole
        self.class_names = tuple(class_names)
        self._kept = kept
        self._class_of = class_of

    @property
    def left_out(self) -> int:
        """Images without a class."""
        return len(self.whole) - len(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def read(self, index: int) -> bytes:
        """The encoded image."""
        return self.whole.read(int(self._kept[index]))

    def name(self, index: int) -> str:
        """What to call the image in reports."""
        return self.whole.name(int(self._kept[index]))

    def label(self, index: int) -> int:
        """The class of the image, a position in ``class_names``."""
        label = self._class_of(int(self._kept[index]))
        assert label is not None  # images without one are not kept
        return label


def only_labelled(source: ImageSource) -> LabelledImages:
    """The images of ``source`` that have a class; refuses one with fewer than two classes."""
    from clove_ssl.data.labels.classes import read_class_labels  # both import the sources
    from clove_ssl.data.scenes import SCENE_CLASSES, SceneSource

    if isinstance(source, SceneSource):
        everything = np.arange(len(source), dtype=np.int64)
        names = ("background", *SCENE_CLASSES)
        return LabelledImages(source, everything, partial(main_class, source), class_names=names)
    labels = read_class_labels(source)
    return LabelledImages(
        source, labels.labelled(), labels.__getitem__, class_names=labels.class_names
    )


def main_class(scenes: SceneSource, index: int) -> int:
    """The class that shows most pixels of a scene; 0, the background, where no object shows."""
    pixels = np.bincount(scenes.scene(index).semantic.ravel())[1:]  # of every class
    return int(pixels.argmax()) + 1 if pixels.any() else 0


def labels_at(source: ImageSource, positions: Sequence[int]) -> IntArray | None:
    """Classes of some images of a source that knows them."""
    if not isinstance(source, LabelledImages):
        return None
    return np.array([source.label(position) for position in positions], np.int64)
