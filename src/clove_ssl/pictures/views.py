"""Pictures of views: where they were cut out, and which of their cells show the same place.

Of the run's own images the views are those that the run itself saw in an epoch.

Dimensions: N images, V views, a grid is h x w cells, L = h * w of them.
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from clove_ssl.backbones.build import Backbone, build_backbone
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.config.views import ViewSpec
from clove_ssl.data.order import view_uniforms
from clove_ssl.errors import UserError
from clove_ssl.methods.config import MatchingConfig
from clove_ssl.painting.predictions import Colour, tone_colour
from clove_ssl.painting.sheets import (
    captioned,
    crop_boxes,
    enlarged,
    framed,
    joined_by_lines,
    wrapped,
)
from clove_ssl.pictures.sources import ShownImage, array_of
from clove_ssl.views.draw.crops import UNIFORMS_PER_VIEW
from clove_ssl.views.draw.parameters import NEUTRAL_FACTORS, ViewParameters, draw_views
from clove_ssl.views.draw.relations import rows_of_numbers
from clove_ssl.views.geometry import Grid, cell_centers, match_cells
from clove_ssl.views.pasting import paste_views
from clove_ssl.views.render.cpu import render_views

VIEWS_PER_ROW = 8
_VIEW_WIDTH, _PAIR_WIDTH = 170, 240


@dataclass(frozen=True)
class DrawnViews:
    """The views of one image."""

    image: ShownImage
    pixels: tuple[Tensor, ...]  # V x (3, h, w) uint8
    parameters: ViewParameters  # of this image alone
    specs: tuple[ViewSpec, ...]

    def box(self, view: int) -> tuple[float, float, float, float]:
        """Where a view was cut out, as shares of the image's width and height."""
        top, left, height, width = self.parameters.crop[0, view].tolist()
        rows, columns = self.image.pixels.shape[1:]
        x, y = left / columns, top / rows
        return x, y, x + width / columns, y + height / rows

    def caption(self, view: int) -> str:
        """Number and kind of a view."""
        role = "large" if self.specs[view].role == "global" else "small"
        return f"{view + 1}: {role}, {self.specs[view].size} px"

    def changes(self, view: int) -> str:
        """What was done to a view besides cutting it out."""
        drawn = self.parameters
        done = {
            "mirror": drawn.flip[0, view],
            "upside down": drawn.vertical_flip[0, view],
            "colour": tuple(drawn.factors[0, view].tolist()) != NEUTRAL_FACTORS,
            "grey": drawn.grey[0, view],
            "blur": drawn.sigma[0, view] > 0,
            "solar": drawn.solarize[0, view],
        }
        return ", ".join(name for name, holds in done.items() if holds) or "unchanged"


def views_rows(
    images: Sequence[ShownImage], trained: PretrainConfig, *, epoch: int
) -> list[list[Image.Image]]:
    """For every image the source with the boxes of its views, and the views."""
    rows = []
    for drawn in draw_all(images, trained, epoch=epoch):
        tiles = [_source_tile(drawn, range(len(drawn.specs)))]
        for view, pixels in enumerate(drawn.pixels):
            picture = framed(enlarged(array_of(pixels), _VIEW_WIDTH), tone_colour(view))
            tiles.append(captioned(picture, drawn.caption(view), note=drawn.changes(view)))
        rows += wrapped(tiles, VIEWS_PER_ROW + 1)
    return rows


def matches_rows(
    images: Sequence[ShownImage],
    trained: PretrainConfig,
    *,
    epoch: int,
    threshold: float | None,
) -> tuple[list[list[Image.Image]], float]:
    """For every image its source and pairs of views with lines, and the threshold that was used."""
    rule = _matching(trained, threshold)
    backbone = build_backbone(trained.backbone).eval()
    rows = []
    for drawn in draw_all(images, trained, epoch=epoch):
        pairs = _pairs(drawn.specs)
        shown = sorted({view for pair in pairs for view in pair})
        tiles = [_source_tile(drawn, shown)]
        tiles += [_paint_pair(drawn, pair, rule, backbone) for pair in pairs]
        rows.append(tiles)
    return rows, rule.threshold


def draw_all(
    images: Sequence[ShownImage], trained: PretrainConfig, *, epoch: int
) -> list[DrawnViews]:
    """The views of all images; of the run's own they are those it saw in that epoch."""
    specs = trained.method.view_specs()
    if not specs:
        raise UserError(
            f"{trained.method.name} looks at no views, so there are none to show. Try: clove show "
            "features RUN"
        )
    rows = rows_of_numbers(specs)
    parameters = []
    for image in images:
        uniforms = view_uniforms(trained.seed, epoch, image.index, rows * UNIFORMS_PER_VIEW)
        height, width = image.pixels.shape[1:]
        parameters.append(draw_views(uniforms.reshape(rows, -1), height, width, specs))
    rendered = [
        render_views(image.pixels, drawn, specs)
        for image, drawn in zip(images, parameters, strict=True)
    ]
    return [
        DrawnViews(image, pixels, drawn, specs)
        for image, pixels, drawn in zip(
            images, _pasted(rendered, parameters, specs), parameters, strict=True
        )
    ]


def _pasted(
    rendered: Sequence[tuple[Tensor, ...]],
    parameters: Sequence[ViewParameters],
    specs: Sequence[ViewSpec],
) -> list[tuple[Tensor, ...]]:
    """Views with the backgrounds of the other images, for methods that paste."""
    if all(spec.paste is None for spec in specs):
        return list(rendered)
    if len(rendered) < 2:
        raise UserError("This method pastes views onto those of other images. Name two or more.")
    stacked = [torch.stack(views) for views in zip(*rendered, strict=True)]  # V x (N, 3, h, w)
    joined = ViewParameters(
        **{
            each.name: np.concatenate([getattr(drawn, each.name) for drawn in parameters])
            for each in fields(ViewParameters)
        }
    )
    views = paste_views(stacked, joined, specs)
    return [tuple(view[number] for view in views) for number in range(len(rendered))]


def _matching(trained: PretrainConfig, threshold: float | None) -> MatchingConfig:
    rule = trained.method.matching_rule
    if rule is not None:
        return rule if threshold is None else replace(rule, threshold=threshold)
    if threshold is None:
        raise UserError(
            f"{trained.method.name} does not match cells by the place they show. To draw which "
            "cells of its views show the same place all the same, add --threshold 0.7"
        )
    return MatchingConfig(threshold=threshold, coordinates="pixel")


def _source_tile(drawn: DrawnViews, shown: Sequence[int]) -> Image.Image:
    """The image with the boxes of some views."""
    source = crop_boxes(
        enlarged(array_of(drawn.image.pixels)),
        [drawn.box(view) for view in shown],
        labels=[str(view + 1) for view in shown],
        colours=[tone_colour(view) for view in shown],
    )
    return captioned(source, drawn.image.name, note=drawn.image.size)


def _pairs(specs: Sequence[ViewSpec]) -> list[tuple[int, int]]:
    """Two large views, and a small with a large one where there are small ones."""
    large = [view for view, spec in enumerate(specs) if spec.role == "global"]
    small = [view for view, spec in enumerate(specs) if spec.role == "local"]
    pairs = [(large[0], large[1])] if len(large) > 1 else []
    pairs += [(small[0], large[0])] if small and large else []
    if not pairs:
        raise UserError("This method has no two views to match. Try: clove show features RUN")
    return pairs


def _paint_pair(
    drawn: DrawnViews, pair: tuple[int, int], rule: MatchingConfig, backbone: Backbone
) -> Image.Image:
    geometry = [drawn.parameters.geometry(view) for view in pair]
    boxes = [each.signed_boxes(rule.coordinates) for each in geometry]  # (1, 4) each
    grids = [_grid(backbone, drawn.specs[view].size) for view in pair]
    (matches,) = match_cells(
        boxes[0], boxes[1], grids[0], grids[1], rule.threshold, unit=rule.unit
    )  # (L_a, L_b)
    links = _nearest_matches(matches, boxes, grids)
    places = [(_place(here, grids[0]), _place(there, grids[1])) for here, there in links]
    pictures = [enlarged(array_of(drawn.pixels[view]), _PAIR_WIDTH) for view in pair]
    whole = joined_by_lines(
        pictures[0],
        pictures[1],
        [(*start, *end) for start, end in places],
        [_place_colour(*start) for start, _ in places],
    )
    caption = "   and   ".join(f"view {drawn.caption(view)}" for view in pair)
    pairs = f"{int(matches.sum())} matching pairs"
    return captioned(
        whole, caption, note=f"{pairs}; {len(links)} of {len(matches)} cells have a match"
    )


def _nearest_matches(
    matches: Tensor, boxes: Sequence[Tensor], grids: Sequence[Grid]
) -> list[tuple[int, int]]:
    """For every cell of the first view that has a match, its nearest one."""
    here, there = (cell_centers(box, grid)[0] for box, grid in zip(boxes, grids, strict=True))
    # Above 25 points cdist switches to a matmul that is not exact, and ties would be drawn anyhow.
    distances = torch.cdist(here, there, compute_mode="donot_use_mm_for_euclid_dist")
    nearest = distances.masked_fill(~matches, torch.inf).argmin(1)  # (L_a,)
    return [(cell, int(nearest[cell])) for cell in matches.any(1).nonzero()[:, 0].tolist()]


def _grid(backbone: Backbone, side: int) -> Grid:
    """Rows and columns of the map of a view."""
    with torch.no_grad():
        feature_map = backbone.features(torch.zeros(1, 3, side, side))
    return feature_map.shape[2], feature_map.shape[3]


def _place(cell: int, grid: Grid) -> tuple[float, float]:
    """Centre of a cell as shares of width and height."""
    row, column = divmod(cell, grid[1])
    return (column + 0.5) / grid[1], (row + 0.5) / grid[0]


def _place_colour(x: float, y: float) -> Colour:
    """A colour that tells places apart: the hue follows x, the brightness y."""
    red, green, blue = colorsys.hsv_to_rgb(0.85 * x, 0.9, 1.0 - 0.45 * y)
    return round(255 * red), round(255 * green), round(255 * blue)
