"""Parameters before pixels: everything random about views, drawn as plain numbers.

Every view consumes one row of ``UNIFORMS_PER_VIEW`` uniform numbers, each
number in a fixed place, whatever is drawn from it. A view therefore depends on
its own row, its image's size and its spec alone: not on the other views, the
batch, or the number of workers.

Crops are distributed as torchvision's ``RandomResizedCrop`` draws them, its
rounding, ten attempts and central fallback included; they are integers, and the
geometry of a view is made from exactly the pixels that were cut out.

Dimensions: N images, V views of each, K = ``UNIFORMS_PER_VIEW``, T attempts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from clove_ssl.config.views import ViewSpec
from clove_ssl.views.geometry import CropGeometry

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

NEUTRAL_FACTORS = (1.0, 1.0, 1.0, 0.0)  # of brightness, contrast, saturation and hue

_ATTEMPTS = 10
_AREA = slice(0, _ATTEMPTS)
_RATIO = slice(_ATTEMPTS, 2 * _ATTEMPTS)
_TOP, _LEFT, _FLIP, _VERTICAL_FLIP, _JITTER, _GREY, _BLUR, _SIGMA, _SOLARIZE = range(20, 29)
_FACTORS = slice(29, 33)
_ORDER = slice(33, 37)
UNIFORMS_PER_VIEW = 37


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
        top, left, height, width = self.crop[:, view].T  # 4 x (N,)
        boxes = np.stack([left, top, left + width, top + height], axis=-1)
        return CropGeometry(
            boxes=torch.from_numpy(boxes.astype(np.float32)),
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
    uniforms: Floats,  # (N, V, K) in [0, 1); (V, K) is one image
    heights: ArrayLike,  # (N,) of the source images, or one number
    widths: ArrayLike,  # (N,)
    specs: Sequence[ViewSpec],  # V of them
) -> ViewParameters:
    """Turn uniform numbers into the parameters of all views of all images."""
    rows = uniforms.reshape(-1, *uniforms.shape[-2:])  # (N, V, K)
    if rows.shape[1:] != (len(specs), UNIFORMS_PER_VIEW):
        raise ValueError(
            f"uniforms have the shape {uniforms.shape}; "
            f"expected (images, {len(specs)} views, {UNIFORMS_PER_VIEW})"
        )
    size = np.stack([np.ravel(heights), np.ravel(widths)], axis=-1).astype(np.int64)  # (N, 2)

    def occurs(place: int, probability: str) -> Booleans:
        happens: Booleans = rows[..., place] < _per_view(specs, probability)
        return happens

    factors, order = _draw_jitter(rows, specs, applied=occurs(_JITTER, "jitter_probability"))
    sigma = _between(rows[..., _SIGMA], _per_view(specs, "blur_sigma"))  # (N, V)
    return ViewParameters(
        image_size=size,
        crop=_draw_crops(rows, size, specs),
        flip=occurs(_FLIP, "flip_probability"),
        vertical_flip=occurs(_VERTICAL_FLIP, "vertical_flip_probability"),
        factors=factors,
        order=order,
        grey=occurs(_GREY, "grey_probability"),
        sigma=np.where(occurs(_BLUR, "blur_probability"), sigma, 0.0),
        solarize=occurs(_SOLARIZE, "solarize_probability"),
    )


def central_crop(size: Integers, ratio: Floats) -> Integers:
    """The crop taken when no attempt fits: as much of the middle as the ratio allows.

    ``size`` is (..., 2) height, width, ``ratio`` (..., 2) the narrowest and widest
    width / height; returns (..., 4) top, left, height, width.
    """
    height, width = size[..., 0], size[..., 1]
    narrowest, widest = ratio[..., 0], ratio[..., 1]
    too_narrow = width / height < narrowest
    too_wide = width / height > widest
    crop_height = np.where(too_narrow, np.rint(width / narrowest), height).astype(np.int64)
    crop_width = np.where(too_wide, np.rint(height * widest), width).astype(np.int64)
    # Extreme ratios round to nothing on images a few pixels wide.
    crop_height, crop_width = np.maximum(crop_height, 1), np.maximum(crop_width, 1)
    top, left = (height - crop_height) // 2, (width - crop_width) // 2
    return np.stack([top, left, crop_height, crop_width], axis=-1)


def _draw_crops(rows: Floats, size: Integers, specs: Sequence[ViewSpec]) -> Integers:
    """Top, left, height and width of every crop, (N, V, 4)."""
    height, width = size[:, None, 0], size[:, None, 1]  # (N, 1) each
    ratio = _per_view(specs, "ratio")  # (V, 2)
    area = _between(rows[..., _AREA], _per_view(specs, "scale")[:, None])  # (N, V, T)
    area *= (height * width)[..., None]
    aspect = np.exp(_between(rows[..., _RATIO], np.log(ratio)[:, None]))  # (N, V, T)
    widths = np.rint(np.sqrt(area * aspect)).astype(np.int64)  # (N, V, T)
    heights = np.rint(np.sqrt(area / aspect)).astype(np.int64)  # (N, V, T)
    fits = (widths > 0) & (widths <= width[..., None])
    fits &= (heights > 0) & (heights <= height[..., None])  # (N, V, T)

    first = fits.argmax(axis=-1)[..., None]  # (N, V, 1), 0 where none fits
    crop_height = np.take_along_axis(heights, first, axis=-1)[..., 0]  # (N, V)
    crop_width = np.take_along_axis(widths, first, axis=-1)[..., 0]  # (N, V)
    top = np.floor(rows[..., _TOP] * (height - crop_height + 1)).astype(np.int64)
    left = np.floor(rows[..., _LEFT] * (width - crop_width + 1)).astype(np.int64)
    drawn = np.stack([top, left, crop_height, crop_width], axis=-1)  # (N, V, 4)
    any_fits = fits.any(axis=-1, keepdims=True)  # (N, V, 1)
    return np.where(any_fits, drawn, central_crop(size[:, None], ratio))


def _draw_jitter(
    rows: Floats, specs: Sequence[ViewSpec], *, applied: Booleans
) -> tuple[Floats, Integers]:
    """Factors and order of the colour jitter, (N, V, 4) each; neutral where not applied."""
    strength = _per_view(specs, "jitter_strength")  # (V, 4)
    neutral = np.array(NEUTRAL_FACTORS)
    smallest = np.array([0.0, 0.0, 0.0, -np.inf])  # a brightness below 0 has no meaning
    span = np.stack([np.maximum(neutral - strength, smallest), neutral + strength], axis=-1)
    factors = _between(rows[..., _FACTORS], span)  # (N, V, 4)
    order = rows[..., _ORDER].argsort(axis=-1)  # (N, V, 4)
    on = applied[..., None]
    return np.where(on, factors, neutral), np.where(on, order, np.arange(4))


def _between(uniforms: Floats, span: Floats) -> Floats:
    """Stretch numbers in [0, 1) to ``span`` (..., 2) low, high."""
    low, high = span[..., 0], span[..., 1]
    stretched: Floats = low + uniforms * (high - low)
    return stretched


def _per_view(specs: Sequence[ViewSpec], name: str) -> Floats:
    """One field of all specs, (V,) or (V, n)."""
    return np.array([getattr(spec, name) for spec in specs], dtype=np.float64)
