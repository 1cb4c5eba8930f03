"""Parameters before pixels: everything random about views, drawn as plain numbers.

Every view consumes one row of ``UNIFORMS_PER_VIEW`` uniform numbers, each
number in a fixed place, whatever is drawn from it. A view therefore depends on
its own row, its image's size and its spec alone: not on the other views, the
batch, or the number of workers. The few views that a spec ties to others of the
same image have further rows (``views/draw/relations.py``).

Crops are integers, and the geometry of a view is made from exactly the pixels
that were cut out.

Dimensions: N images, V views of each, R >= V rows of K = ``UNIFORMS_PER_VIEW`` numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from clove_ssl.config.views import ViewSpec
from clove_ssl.views.draw.crops import (
    UNIFORMS_PER_VIEW,
    Booleans,
    Floats,
    Integers,
    between,
    boxes_of,
    draw_crops,
)
from clove_ssl.views.draw.relations import (
    alike,
    paste_rectangles,
    related_crops,
    rows_of_numbers,
    split_rows,
)
from clove_ssl.views.geometry import CropGeometry

NEUTRAL_FACTORS = (1.0, 1.0, 1.0, 0.0)  # of brightness, contrast, saturation and hue

_FLIP, _VERTICAL_FLIP, _JITTER, _GREY, _BLUR, _SIGMA, _SOLARIZE = range(22, 29)  # after the crop's
_FACTORS = slice(29, 33)
_ORDER = slice(33, UNIFORMS_PER_VIEW)


@dataclass(frozen=True)
class ViewParameters:
    """The random numbers of V views of N images; an operation that is off has neutral ones."""

    image_size: Integers  # (N, 2) height, width of the source images
    crop: Integers  # (N, V, 4) top, left, height, width in source pixels
    flip: Booleans  # (N, V) left-right
    vertical_flip: Booleans  # (N, V) upside down
    factors: Floats  # (N, V, 4) of brightness, contrast, saturation and hue jitter
    order: Integers  # (N, V, 4) places in ``factors``, in the order they are applied
    grey: Booleans  # (N, V)
    sigma: Floats  # (N, V) of the blur, in pixels of the view; 0 is no blur
    solarize: Booleans  # (N, V)
    paste: Integers  # (N, V, 4) top, left, height, width of what is left of the view when pasted

    def __len__(self) -> int:
        """The number of images."""
        return len(self.crop)

    @property
    def views(self) -> int:
        """The number of views of each image."""
        return int(self.crop.shape[1])

    def image(self, image: int) -> ViewParameters:
        """The parameters of one image, still with an axis of images."""
        return ViewParameters(
            **{each.name: getattr(self, each.name)[image : image + 1] for each in fields(self)}
        )

    def geometry(self, view: int) -> CropGeometry:
        """Where one view of every image comes from."""
        return CropGeometry(
            boxes=torch.from_numpy(boxes_of(self.crop[:, view])),
            flipped=torch.from_numpy(self.flip[:, view].copy()),
            flipped_vertically=torch.from_numpy(self.vertical_flip[:, view].copy()),
            image_size=torch.from_numpy(self.image_size.copy()),
        )

    def describe(self, image: int, view: int) -> dict[str, Any]:
        """One view as plain numbers and lists, fit for a log line."""
        description = {"image_size": self.image_size[image].tolist()}
        for name in _PER_VIEW:
            description[name] = getattr(self, name)[image, view].tolist()
        return description

    @classmethod
    def from_descriptions(cls, views: Sequence[Mapping[str, Any]]) -> ViewParameters:
        """The parameters of one image, from what ``describe`` says of its views."""
        columns = {name: np.array([[view[name] for view in views]]) for name in _PER_VIEW}
        return cls(image_size=np.array([views[0]["image_size"]]), **columns)


_PER_VIEW = [each.name for each in fields(ViewParameters) if each.name != "image_size"]


def draw_views(
    uniforms: Floats,  # (N, R, K) in [0, 1); (R, K) is one image
    heights: ArrayLike,  # (N,) of the source images, or one number
    widths: ArrayLike,  # (N,)
    specs: Sequence[ViewSpec],  # V of them
) -> ViewParameters:
    """Turn uniform numbers into the parameters of all views of all images."""
    size = np.stack([np.ravel(heights), np.ravel(widths)], axis=-1).astype(np.int64)  # (N, 2)
    rows, further = split_rows(_by_image(uniforms, specs), specs)  # (N, V, K)
    flips, colors = alike(specs)

    def occurs(place: int, probability: str) -> Booleans:
        happens: Booleans = rows[..., place] < _per_view(specs, probability)
        return happens

    # The number that a view's own flip would take; patches of a frame stay together.
    apart = occurs(_FLIP, "flips_apart")[:, colors] & (flips != np.arange(len(specs)))  # (N, V)
    factors, order = _draw_jitter(rows, specs, applied=occurs(_JITTER, "jitter_probability"))
    sigma = between(rows[..., _SIGMA], _per_view(specs, "blur_sigma"))  # (N, V)
    scale, ratio = _per_view(specs, "scale"), _per_view(specs, "ratio")  # (V, 2) each
    crops = draw_crops(rows, size, scale=scale, ratio=ratio)
    return ViewParameters(
        image_size=size,
        crop=related_crops(crops, rows, further, size, specs),
        flip=occurs(_FLIP, "flip_probability")[:, flips] ^ apart,
        vertical_flip=occurs(_VERTICAL_FLIP, "vertical_flip_probability")[:, flips],
        factors=factors[:, colors],
        order=order[:, colors],
        grey=occurs(_GREY, "grey_probability")[:, colors],
        sigma=np.where(occurs(_BLUR, "blur_probability"), sigma, 0.0)[:, colors],
        solarize=occurs(_SOLARIZE, "solarize_probability")[:, colors],
        paste=paste_rectangles(further, specs, len(size)),
    )


def _by_image(uniforms: Floats, specs: Sequence[ViewSpec]) -> Floats:
    """The numbers with an axis of images, (N, R, K), if there are as many as the views take."""
    rows = uniforms.reshape(-1, *uniforms.shape[-2:])
    if rows.shape[1:] != (rows_of_numbers(specs), UNIFORMS_PER_VIEW):
        raise ValueError(
            f"uniforms have the shape {uniforms.shape}; expected (images, {rows_of_numbers(specs)} "
            f"rows for {len(specs)} views, {UNIFORMS_PER_VIEW})"
        )
    return rows


def _draw_jitter(
    rows: Floats, specs: Sequence[ViewSpec], *, applied: Booleans
) -> tuple[Floats, Integers]:
    """Factors and order of the colour jitter, (N, V, 4) each; neutral where not applied."""
    strength = _per_view(specs, "jitter_strength")  # (V, 4)
    neutral = np.array(NEUTRAL_FACTORS)
    smallest = np.array([0.0, 0.0, 0.0, -np.inf])  # a brightness below 0 has no meaning
    span = np.stack([np.maximum(neutral - strength, smallest), neutral + strength], axis=-1)
    # Drawn even where jitter is off, as every number has its place in the row.
    factors = between(rows[..., _FACTORS], span)  # (N, V, 4)
    # The ranks of four random numbers are a random order, each equally likely.
    order = rows[..., _ORDER].argsort(axis=-1)  # (N, V, 4)
    on = applied[..., None]
    return np.where(on, factors, neutral), np.where(on, order, np.arange(4))


def _per_view(specs: Sequence[ViewSpec], name: str) -> Floats:
    """One field of all specs, (V,) or (V, n)."""
    return np.array([getattr(spec, name) for spec in specs], dtype=np.float64)
