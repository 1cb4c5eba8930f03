"""``clove show``: what a run works with and what it has learned, as PNG sheets."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from clove_ssl.backbones.build import Backbone
from clove_ssl.config.showing import ShowConfig
from clove_ssl.console import Console
from clove_ssl.errors import UserError
from clove_ssl.painting.sheets import (
    as_colours,
    captioned,
    enlarged,
    heat,
    ring,
    wrapped,
    write_titled_sheet,
)
from clove_ssl.pictures.maps import (
    cell_at,
    fitted,
    principal_colours,
    similarity_maps,
    sliding_map,
    thinned,
)
from clove_ssl.pictures.sources import (
    ShownImage,
    ShownNetwork,
    array_of,
    choose_images,
    is_run,
    large_side,
    load_trained,
    open_method,
    open_networks,
    open_untrained,
)
from clove_ssl.pictures.views import matches_rows, views_rows
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.training.processes import choose_device
from clove_ssl.views.batch import normalize

Rows = list[list[Image.Image]]
Sheet = tuple[str, Rows]
"""A title and rows of tiles."""

PER_ROW = 6
_MOST_PIXELS = 16_000_000  # of an enlarged input


def show(config: ShowConfig) -> Path:
    """Draw a sheet, write it, and say where it is."""
    path = paint_sheet(config)
    Console().say(str(path))
    return path


def paint_sheet(config: ShowConfig) -> Path:
    """Paint a sheet and write it."""
    with Console().working(f"Drawing {config.what}"):
        title, rows = _SHEETS[config.what](config)
        return write_titled_sheet(config.out or _default_out(config), title, rows)


def _default_out(config: ShowConfig) -> Path:
    if is_run(config.run):
        return RunDirectory(config.run).pictures / f"{config.what}.png"
    return config.run.with_name(f"{config.run.stem}-{config.what}.png")


def _views(config: ShowConfig) -> Sheet:
    trained = load_trained(config)
    images = choose_images(config, trained)
    title = f"Views of {trained.method.name} with their crops on the image ({_name(config)})"
    return title, views_rows(images, trained, epoch=config.epoch)


def _matches(config: ShowConfig) -> Sheet:
    trained = load_trained(config)
    images = choose_images(config, trained)
    rows, threshold = matches_rows(images, trained, epoch=config.epoch, threshold=config.threshold)
    title = (
        f"Cells of two views closer than {threshold:g} cell diagonals match; a line leads from "
        f"each cell to its nearest match ({_name(config)})"
    )
    return title, rows


def _features(config: ShowConfig) -> Sheet:
    before = open_untrained(config)
    networks = [*before, *open_networks(config, both=True)]
    images, maps = _image_maps(config, networks)
    # Each its own directions: those of random weights have nothing to do with the trained ones.
    colours = [
        *principal_colours(maps[: len(before)]),
        *principal_colours(maps[len(before) :]),
    ]
    rows: Rows = []
    for number, image in enumerate(images):
        picture = enlarged(array_of(image.pixels))
        tiles = [captioned(picture, image.name, note=image.size)]
        for network, shares in zip(networks, colours, strict=True):
            height, width = shares[number].shape[:2]
            coloured = as_colours(shares[number].numpy(), picture.size)
            is_after = before and network not in before
            label = f"after: {network.label}" if is_after else network.label
            tiles.append(captioned(coloured, label, note=f"{width} x {height} features"))
        rows.append(tiles)
    title = (
        f"Features of {_stage(config, networks[0].backbone)}: what looks alike to the network has "
        f"one colour ({_name(config)})"
    )
    return title, _side_by_side(rows)


def _similarity(config: ShowConfig) -> Sheet:
    networks = open_networks(config, both=False)
    images, (maps,) = _image_maps(config, networks)
    row, column = cell_at(config.at, _grid(maps[0]))
    found = [each.cpu() for each in similarity_maps(maps[0][:, row, column], maps)]
    values = torch.cat([each.flatten() for each in found])
    low, high = (torch.quantile(thinned(values), share).item() for share in (0.02, 0.995))
    first = ring(enlarged(array_of(images[0].pixels)), config.at)
    tiles = [captioned(first, images[0].name, note="the chosen cell")]
    for image, cosines in zip(images, found, strict=True):
        picture = enlarged(heat(array_of(image.pixels), cosines.numpy(), low=low, high=high))
        is_first = image is images[0]
        note = "to its own image" if is_first else f"at most {cosines.max():.2f}"
        place = config.at if is_first else _brightest(cosines)
        tiles.append(captioned(ring(picture, place), image.name, note=note))
    title = (
        f"Cosine of the cell in the ring with all cells, {_stage(config, networks[0].backbone)} "
        f"of the {networks[0].label}: dark {low:.2f}, bright {high:.2f}; on other images the ring "
        f"marks the most similar cell ({_name(config)})"
    )
    return title, wrapped(tiles, PER_ROW)


def _attention(config: ShowConfig) -> Sheet:
    trained = load_trained(config)
    if not trained.method.has_attention:
        raise UserError(
            f"{trained.method.name} has no attention to show. For the features of this run type: "
            f"clove show features {config.run}"
        )
    if config.branch == "teacher":
        raise UserError("Only the student has attention. Leave out --branch teacher.")
    method, step = open_method(config)
    device = choose_device(config.device)
    method.to(device)
    backbone = method.backbone
    rows: Rows = []
    for image in choose_images(config, trained):
        pixels = _input(config, image, large_side(trained), backbone.strides[backbone.stage])
        floats = normalize(pixels[None].to(device), torch.float32, channels_last=False)
        with torch.no_grad():
            weights = method.attention_maps(floats)[0].cpu()  # (heads, h, w, h, w)
        rows += _attention_rows(config, image, weights)
    title = (
        f"What the cell in the ring takes from all cells, by head, after step {step:,}; bright is "
        f"much ({_name(config)})"
    )
    return title, rows


def _attention_rows(config: ShowConfig, image: ShownImage, weights: Tensor) -> Rows:
    grid = _grid(weights[0, 0])
    row, column = cell_at(config.at, grid)
    seen = weights[:, row, column]  # (heads, h, w)
    pixels = array_of(image.pixels)
    tiles = [captioned(ring(enlarged(pixels), config.at), image.name, note=image.size)]
    named = [("mean of all heads", seen.mean(0))]
    named += [(f"head {number}", each) for number, each in enumerate(seen, start=1)]
    even = 1 / (grid[0] * grid[1])
    for name, share in named:
        picture = enlarged(heat(pixels, share.numpy(), low=0.0, high=share.max().item()))
        note = f"at most {share.max() / even:.1f} x an even share"
        tiles.append(captioned(ring(picture, config.at), name, note=note))
    return wrapped(tiles, PER_ROW)


def _image_maps(
    config: ShowConfig, networks: Sequence[ShownNetwork]
) -> tuple[list[ShownImage], list[list[Tensor]]]:
    """The images, and their maps (D, h, w) by network."""
    trained = load_trained(config) if is_run(config.run) else None
    images = choose_images(config, trained)
    device = choose_device(config.device)
    maps: list[list[Tensor]] = []
    for network in networks:
        backbone = network.backbone.to(device)
        backbone.stage = _stage(config, backbone)
        stride = backbone.strides[backbone.stage]
        inputs = [_input(config, image, large_side(trained), stride) for image in images]
        maps.append(
            [
                sliding_map(backbone.features, each.to(device), stride=stride, slide=config.slide)
                for each in inputs
            ]
        )
    return images, maps


def _input(config: ShowConfig, image: ShownImage, side: int, stride: int) -> Tensor:
    pixels = fitted(image.pixels, config.enlarge * side, stride)
    if pixels.shape[1] * pixels.shape[2] > _MOST_PIXELS:
        raise UserError(
            f"{image.name} would be enlarged to {pixels.shape[2]} x {pixels.shape[1]} pixels, more "
            f"than {_MOST_PIXELS / 1e6:.0f} million. Give a smaller --enlarge."
        )
    return pixels


def _stage(config: ShowConfig, backbone: Backbone) -> str:
    stage = config.stage or backbone.stage
    if stage not in backbone.channels:
        raise UserError(
            f"--stage {stage}: {backbone.name} has {', '.join(backbone.channels)}. Name one of "
            f"these, for example --stage {list(backbone.channels)[-1]}"
        )
    return stage


def _name(config: ShowConfig) -> str:
    return config.run.resolve().name


def _grid(feature_map: Tensor) -> tuple[int, int]:
    return feature_map.shape[1], feature_map.shape[2]


def _brightest(values: Tensor) -> tuple[float, float]:
    """Where the largest of (h, w) values lies, as shares of width and height."""
    row, column = divmod(int(values.argmax()), values.shape[1])
    return (column + 0.5) / values.shape[1], (row + 0.5) / values.shape[0]


def _side_by_side(rows: Rows) -> Rows:
    """Short rows beside each other, so that a sheet of many images does not become a tower."""
    per_row = max(1, PER_ROW // len(rows[0]))
    lines = math.ceil(len(rows) / per_row)
    return [sum(rows[line * per_row : (line + 1) * per_row], []) for line in range(lines)]


_SHEETS: dict[str, Callable[[ShowConfig], Sheet]] = {
    "views": _views,
    "matches": _matches,
    "attention": _attention,
    "similarity": _similarity,
    "features": _features,
}
