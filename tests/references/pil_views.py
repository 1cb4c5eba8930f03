"""The released image pipeline, spelled out: Pillow images, torchvision's functions, one by one.

It takes the same parameters as ``clove_ssl.views.render.cpu`` and is as slow as
the pipeline it stands for. Every operation rounds to 8 bits.
"""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image, ImageFilter, ImageOps
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

from clove_ssl.config.views import ViewSpec
from clove_ssl.views.draw.parameters import NEUTRAL_FACTORS, ViewParameters

JITTER = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)


def to_pil(image: Tensor) -> Image.Image:
    """(3, H, W) uint8 to a Pillow image."""
    return Image.fromarray(np.ascontiguousarray(image.permute(1, 2, 0).numpy()))


def to_tensor(image: Image.Image) -> Tensor:
    """A Pillow image to (3, H, W) uint8."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def render_view(
    image: Image.Image, parameters: ViewParameters, view: int, spec: ViewSpec
) -> Image.Image:
    """One view of the image, as a Pillow image."""
    top, left, height, width = parameters.crop[0, view].tolist()
    mode = InterpolationMode(spec.interpolation)
    image = F.resized_crop(image, top, left, height, width, [spec.size, spec.size], mode)
    if parameters.flip[0, view]:
        image = F.hflip(image)
    if parameters.vertical_flip[0, view]:
        image = F.vflip(image)
    for operation in parameters.order[0, view].tolist():
        factor = float(parameters.factors[0, view, operation])
        if factor != NEUTRAL_FACTORS[operation]:
            image = JITTER[operation](image, factor)
    if parameters.grey[0, view]:
        image = F.to_grayscale(image, num_output_channels=3)
    if parameters.sigma[0, view] > 0:
        image = image.filter(ImageFilter.GaussianBlur(float(parameters.sigma[0, view])))
    if parameters.solarize[0, view]:
        image = ImageOps.solarize(image, spec.solarize_threshold)
    return image


def render_views(
    image: Tensor, parameters: ViewParameters, specs: tuple[ViewSpec, ...]
) -> list[Tensor]:
    """All views of one image, (3, h, w) uint8 each."""
    source = to_pil(image)
    return [
        to_tensor(render_view(source, parameters, view, spec)) for view, spec in enumerate(specs)
    ]
