"""Probes without labels: two random views of images, and what features make of them.

``correspondence`` asks whether features find a place again: of every cell that has a
matching cell in the other view, the most similar cell there should be such a match
(centres closer than 0.7 cell diagonals, as CLoVE's positives are). ``spread`` asks how
images are laid out: how many dimensions they use, how close two views of one image
are (alignment), and how evenly different images cover the sphere (uniformity; both
as Wang and Isola, 2020, define them).

The views are those of the published recipe, whatever the method was trained with, and
depend on a seed and the number of the image alone.

Dimensions: N images of S x S pixels, B of them in a batch, D channels, L cells.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clove_ssl.config.views import ViewsConfig
from clove_ssl.data.order import view_uniforms
from clove_ssl.layers.normalization import unit_vectors
from clove_ssl.methods.health import effective_rank
from clove_ssl.probes.data import ImageSet
from clove_ssl.probes.features import BATCH, FrozenFeatures, in_threads, spread
from clove_ssl.probes.scores import Score, mean, resample_counts, share, spread_of
from clove_ssl.views.draw.crops import UNIFORMS_PER_VIEW
from clove_ssl.views.draw.parameters import draw_views
from clove_ssl.views.geometry import match_cells
from clove_ssl.views.render.cpu import render_views

THRESHOLD = 0.7
"""T_pos: how many cell diagonals two centres may lie apart to show the same place."""

_EPOCH = 2**31  # no run gets there, so these views are not those of its first epoch


@dataclass(frozen=True)
class ViewPairs:
    """Two views of every image."""

    pixels: tuple[Tensor, Tensor]  # (N, 3, S, S) uint8 each
    boxes: tuple[Tensor, Tensor]  # (N, 4) signed, in source pixels

    def __len__(self) -> int:
        return len(self.boxes[0])


@dataclass(frozen=True)
class PairFeatures:
    """What a backbone says about pairs of views."""

    right: Tensor  # (N,) cells whose nearest neighbour is a match, in both directions
    judged: Tensor  # (N,) cells that have a match
    lucky: Tensor  # (N,) the same as ``right`` if neighbours were drawn by lot
    pooled: tuple[Tensor, Tensor]  # (N, D) each


def draw_pairs(images: ImageSet, *, limit: int, size: int, seed: int) -> ViewPairs:
    """Two views of at most ``limit`` images, spread evenly over the set."""
    # Always the recipe's two large views, so that methods trained with others can be compared.
    specs = ViewsConfig(global_size=size, local_count=0).specs()

    def one(index: int) -> tuple[tuple[Tensor, ...], list[Tensor]]:
        image = images.load(index)
        uniforms = view_uniforms(seed, _EPOCH, index, len(specs) * UNIFORMS_PER_VIEW)
        parameters = draw_views(
            uniforms.reshape(len(specs), -1), image.shape[1], image.shape[2], specs
        )
        boxes = [parameters.geometry(view).signed_boxes("pixel")[0] for view in range(len(specs))]
        return render_views(image, parameters, specs), boxes

    views, boxes = zip(*in_threads(one, spread(images.count, limit)), strict=True)
    first, second = (torch.stack([pair[view] for pair in views]) for view in range(2))
    here, there = (torch.stack([pair[view] for pair in boxes]) for view in range(2))
    return ViewPairs((first, second), (here, there))


def look_at_pairs(extract: FrozenFeatures, pairs: ViewPairs) -> PairFeatures:
    """Features of all pairs, and which of their cells find each other."""
    counts, pooled = [], []
    for start in range(0, len(pairs), BATCH):
        part = slice(start, start + BATCH)
        maps = [extract(pixels[part]) for pixels in pairs.pixels]  # 2 x (B, D, h, w)
        boxes = [box[part].to(maps[0].device) for box in pairs.boxes]
        counts.append(count_found(maps[0], maps[1], boxes[0], boxes[1]))
        pooled.append([feature_map.mean((2, 3)) for feature_map in maps])
    right, judged, lucky = (torch.cat(parts) for parts in zip(*counts, strict=True))
    first, second = (torch.cat(parts) for parts in zip(*pooled, strict=True))
    return PairFeatures(right, judged, lucky, (first, second))


def count_found(
    a: Tensor, b: Tensor, boxes_a: Tensor, boxes_b: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Cells found, cells judged and cells found by luck, (B,) each, from maps (B, D, h, w)."""
    grid_a, grid_b = ((maps.shape[2], maps.shape[3]) for maps in (a, b))
    matches = match_cells(boxes_a, boxes_b, grid_a, grid_b, THRESHOLD)  # (B, L_a, L_b)
    rows = [unit_vectors(maps.flatten(2).mT) for maps in (a, b)]  # (B, L, D) each
    similarity = rows[0] @ rows[1].mT  # (B, L_a, L_b)
    there = _count_one_way(similarity, matches)
    back = _count_one_way(similarity.mT, matches.mT)
    right, judged, lucky = (one + other for one, other in zip(there, back, strict=True))
    return right, judged, lucky


def _count_one_way(similarity: Tensor, matches: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    nearest = similarity.argmax(2, keepdim=True)  # (B, Q, 1)
    found = matches.gather(2, nearest)[..., 0]  # (B, Q)
    usable = matches.any(2)  # (B, Q)
    # What a guess would hit differs from image to image: large overlaps have more matches per cell.
    lucky = matches.double().mean(2)  # (B, Q)
    return found.double().sum(1), usable.double().sum(1), lucky.sum(1)


def correspondence(pairs: PairFeatures, *, seed: int) -> Score:
    """Share of cells that find their place in the other view."""
    chance = (pairs.lucky.sum() / pairs.judged.sum().clamp(min=1)).item()
    return share(pairs.right, pairs.judged, chance=chance, seed=seed)


def spread_scores(pairs: PairFeatures, *, seed: int) -> dict[str, Score]:
    """Rank, alignment and uniformity of pooled features."""
    # On the CPU, whose decomposition of so small a matrix is the faster one.
    pooled = [features.double().cpu() for features in pairs.pooled]  # 2 x (N, D)
    first, second = (unit_vectors(features) for features in pooled)
    # The mean says nothing about images, and of features behind a ReLU it is most of the length.
    rank = effective_rank(pooled[0] - pooled[0].mean(0))
    apart = (first - second).square().sum(1)  # (N,)
    return {
        "effective_rank": Score(rank.item(), is_share=False),
        "alignment": mean(apart, seed=seed),
        "uniformity": uniformity(first, seed=seed),
    }


def uniformity(unit: Tensor, *, seed: int) -> Score:
    """log of the mean of exp(-2 d^2) over pairs of (N, D) unit vectors; lower is more even."""
    # The squared distance of unit vectors is 2 - 2 cos.
    closeness = (-2 * (2 - 2 * unit @ unit.T)).exp().cpu()  # (N, N)
    closeness.fill_diagonal_(0)
    counts = resample_counts(len(unit), seed=seed)  # (R, N)
    # An image that was drawn twice is no pair of different images.
    pairs = len(unit) ** 2 - counts.square().sum(1)  # (R,)
    drawn = (((counts @ closeness) * counts).sum(1) / pairs)[pairs > 0]  # (R,)
    value = closeness.sum() / max(1, len(unit) * (len(unit) - 1))
    return Score(value.log().item(), spread_of(drawn.log()), is_share=False, drawn=drawn.log())


def calibration_images(pairs: ViewPairs) -> Tensor:
    """Images to take batch-norm statistics from where there are no others: (N, 3, S, S)."""
    first = torch.arange(len(pairs)) % 2 == 0  # (N,)
    return torch.where(first[:, None, None, None], *pairs.pixels)
