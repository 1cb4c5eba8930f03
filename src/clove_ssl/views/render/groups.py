"""Views that are rendered together: same size, same filters, one row of numbers per view.

All views of a group form one long axis, view by view and within a view image by
image, so that the pixels of one view of the whole batch lie together in memory.

Dimensions: N images, V views of each; a group has G of the V, and M = G * N rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clove_ssl.config.views import BlurKernel, Interpolation, ViewSpec
from clove_ssl.views.draw.crops import Booleans, Floats, Integers
from clove_ssl.views.draw.parameters import ViewParameters


@dataclass(frozen=True)
class ViewGroup:
    """The parameters of all views of one kind."""

    views: tuple[int, ...]  # G places among the specs
    size: int  # side of the views in pixels
    interpolation: Interpolation
    blur_kernel: BlurKernel
    image: Integers  # (M,) which image a row is a view of
    crop: Integers  # (M, 4) top, left, height, width in source pixels
    flip: Booleans  # (M,)
    vertical_flip: Booleans  # (M,)
    factors: Floats  # (M, 4) of brightness, contrast, saturation and hue
    order: Integers  # (M, 4) places in ``factors``, in the order they are applied
    grey: Booleans  # (M,)
    sigma: Floats  # (M,) 0 is no blur
    solarize_from: Floats  # (M,) pixels of this value and above are inverted; infinity for none

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.image)


def group_views(parameters: ViewParameters, specs: Sequence[ViewSpec]) -> list[ViewGroup]:
    """All views of a batch, in groups that can be rendered in one go."""
    kinds: dict[tuple[int, Interpolation, BlurKernel], list[int]] = {}
    for view, spec in enumerate(specs):
        kinds.setdefault((spec.size, spec.interpolation, spec.blur_kernel), []).append(view)
    return [
        _group(parameters, specs, views, size=size, interpolation=interpolation, blur_kernel=kernel)
        for (size, interpolation, kernel), views in kinds.items()
    ]


def _group(
    parameters: ViewParameters,
    specs: Sequence[ViewSpec],
    views: list[int],
    *,
    size: int,
    interpolation: Interpolation,
    blur_kernel: BlurKernel,
) -> ViewGroup:
    def rows(name: str) -> np.ndarray:
        values: np.ndarray = getattr(parameters, name)[:, views]  # (N, G, ...)
        return values.swapaxes(0, 1).reshape(len(views) * len(parameters), *values.shape[2:])

    # A pixel counts as bright once rounded, as it would where pixels are 8-bit numbers.
    thresholds = [specs[view].solarize_threshold - 0.5 for view in views]
    return ViewGroup(
        views=tuple(views),
        size=size,
        interpolation=interpolation,
        blur_kernel=blur_kernel,
        image=np.tile(np.arange(len(parameters)), len(views)),
        crop=rows("crop"),
        flip=rows("flip"),
        vertical_flip=rows("vertical_flip"),
        factors=rows("factors"),
        order=rows("order"),
        grey=rows("grey"),
        sigma=rows("sigma"),
        solarize_from=np.where(rows("solarize"), np.repeat(thresholds, len(parameters)), np.inf),
    )
