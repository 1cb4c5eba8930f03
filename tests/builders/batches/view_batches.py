"""Batches of made-up photos of different sizes with parameters, and how to compare their views."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from clove_ssl.config.views import ViewSpec
from clove_ssl.views.batch import normalization
from clove_ssl.views.draw.crops import UNIFORMS_PER_VIEW
from clove_ssl.views.draw.parameters import ViewParameters, draw_views
from clove_ssl.views.draw.relations import rows_of_numbers


def made_up_photos(sizes: Sequence[tuple[int, int]]) -> list[Tensor]:
    """One photo per (height, width): soft colourful shapes with grain, laid out as decoded."""
    photos = []
    for seed, (height, width) in enumerate(sizes):
        rng = np.random.default_rng(seed)
        coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        soft = coarse.resize((width, height), Image.Resampling.BICUBIC)
        grain = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
        photos.append(torch.from_numpy(np.array(Image.blend(soft, grain, 0.2))).permute(2, 0, 1))
    return photos


def draw(images: Sequence[Tensor], specs: Sequence[ViewSpec], seed: int = 0) -> ViewParameters:
    """Parameters of all views of all images."""
    shape = (len(images), rows_of_numbers(specs), UNIFORMS_PER_VIEW)
    uniforms = np.random.default_rng(seed).random(shape)
    heights, widths = np.array([image.shape[1:] for image in images]).T
    return draw_views(uniforms, heights, widths, specs)


def grey_levels(views: Tensor) -> Tensor:
    """Normalised views (N, 3, h, w) as levels from 0 to 255 again, float32 on the CPU."""
    scale, shift = normalization("cpu")
    return (views.float().cpu() - shift) / scale


def assert_close(
    found: Tensor, expected: Tensor, *, mean: float, nearly_all: float, largest: float, about: str
) -> None:
    """Bound the mean, the 99.9th percentile and the largest difference of one view."""
    difference = (found - expected).abs().numpy()
    values = difference.mean(), np.percentile(difference, 99.9), difference.max()
    within = np.array(values) <= [mean, nearly_all, largest]
    assert within.all(), f"{about}: mean, 99.9 % and largest difference are {values}"
