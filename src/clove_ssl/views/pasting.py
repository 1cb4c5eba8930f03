"""Copy-paste: of a view one rectangle stays, around it the same view of another image shows.

The rectangle is drawn with all other numbers (``views/draw/relations.py``); pixels
are put together after rendering, wherever that was done. Backgrounds come from
the next images of the batch, within groups of four where the batch divides into
such: a group is always together, however many processes share a step, so
neither their number nor the micro-batch changes a pixel.

Dimensions: B images, a view is s x s pixels, a grid over it h x w cells.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from clove_ssl.config.views import ViewSpec
from clove_ssl.errors import UserError
from clove_ssl.views.draw.crops import Integers, boxes_of
from clove_ssl.views.draw.parameters import ViewParameters
from clove_ssl.views.render.packing import send_together

GROUP = 4  # images that give each other backgrounds


def paste_views(
    pixels: Sequence[Tensor], parameters: ViewParameters, specs: Sequence[ViewSpec]
) -> tuple[Tensor, ...]:
    """Rendered views (B, 3, s, s) of any type, pasted where their specs ask for it."""
    return tuple(
        view
        if spec.paste is None
        else _pasted(view, parameters.paste[:, number], neighbour=spec.paste.neighbour)
        for number, (view, spec) in enumerate(zip(pixels, specs, strict=True))
    )


def foreground_boxes(parameters: ViewParameters, view: int, spec: ViewSpec) -> Tensor | None:
    """The rectangles that were pasted, x0, y0, x1, y1 (B, 4) in pixels of the view."""
    return None if spec.paste is None else torch.from_numpy(boxes_of(parameters.paste[:, view]))


def foreground_mask(boxes: Tensor, size: int, grid: tuple[int, int]) -> Tensor:
    """Which cells of a grid over a view of s x s pixels have their centre in a box: (B, h, w)."""
    x0, y0, x1, y1 = boxes[:, :, None].unbind(1)  # 4 x (B, 1)
    rows, columns = (_centers(count, size, boxes) for count in grid)  # (h,), (w,)
    in_rows = (y0 <= rows) & (rows < y1)  # (B, h)
    in_columns = (x0 <= columns) & (columns < x1)  # (B, w)
    return in_rows[:, :, None] & in_columns[:, None]


def neighbours(images: int, which: int, device: torch.device | str = "cpu") -> Tensor:
    """For every image of a batch the one that gives its background, never itself: (B,)."""
    if images < 2:
        raise UserError(
            "copy-paste needs the background of another image, but each forward pass handles "
            "one alone. Give --micro-batch 4, or a multiple of it."
        )
    group = GROUP if images % GROUP == 0 else images
    place = torch.arange(images, device=device)
    # From 1 to group - 1: never 0, which would be the image itself.
    distance = 1 + (which - 1) % (group - 1)
    return place - place % group + (place % group + distance) % group


def _pasted(view: Tensor, rectangles: Integers, *, neighbour: int) -> Tensor:
    size = view.shape[-1]
    (boxes,) = send_together([boxes_of(rectangles)], view.device)  # (B, 4)
    stays = foreground_mask(boxes, size, (size, size))[:, None]  # (B, 1, s, s)
    around = view[neighbours(len(view), neighbour, view.device)]
    # ``out`` keeps the memory layout of the view, whatever torch would choose for such a mixture.
    return torch.where(stays, view, around, out=torch.empty_like(view))


def _centers(count: int, size: int, like: Tensor) -> Tensor:
    """Centres of ``count`` cells along a side of ``size`` pixels: (count,)."""
    return (torch.arange(count, device=like.device, dtype=like.dtype) + 0.5) * size / count
