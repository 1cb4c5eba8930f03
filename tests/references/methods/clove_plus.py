"""CLoVE Plus term by term in float64, and a network small enough for it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from builders.runs.foreground_runs import TinyStages
from torch import Tensor

from clove_ssl.losses import clove_loss
from clove_ssl.methods.clove_plus.method import CLoVEPlus, TaughtCLoVEPlus
from clove_ssl.views.batch import View, ViewBatch
from clove_ssl.views.geometry import match_cells


class TinyMaps(TinyStages):
    """Stages c2 to c5 with strides 2 to 16 and few channels, of which some are handed out."""

    out_channels = 6

    def hand_out(self, stages: Iterable[str]) -> None:
        self.wanted = {*stages, self.stage}

    def maps(self, images: Tensor) -> dict[str, Tensor]:
        return {stage: each for stage, each in self(images).items() if stage in self.wanted}


def cell_loss(method: CLoVEPlus, batch: ViewBatch) -> Tensor:
    """The mean over stages of the mean over all pairs of views, one call of the loss for each."""
    large = [view for view in batch.views if view.role == "global"]
    small = [view for view in batch.views if view.role == "local"]
    taught = isinstance(method, TaughtCLoVEPlus)
    with torch.no_grad():
        targets = _projected(method.teacher.module if taught else method.encoder, large)
    students = [
        *zip(large, _projected(method.encoder, large), strict=True),
        *zip(small, _projected(method.encoder, small), strict=True),
    ]
    stages = []
    for stage in method.config.stages:
        terms = []
        for view, maps in students:
            for other, wanted in zip(large, targets, strict=True):
                if view is not other:
                    mixed = method.attentions[stage](maps[stage])
                    terms.append(_term(method, mixed, wanted[stage], view, other))
        stages.append(torch.stack(terms).mean())
    return torch.stack(stages).mean()


def _projected(encoder: torch.nn.Module, views: list[View]) -> list[dict[str, Tensor]]:
    """Views of one size through backbone and projectors together, then taken apart."""
    if not views:
        return []
    maps = encoder.backbone.maps(torch.cat([view.pixels for view in views]))
    chunks = {
        stage: projector(maps[stage]).chunk(len(views))
        for stage, projector in encoder.projectors.items()
    }
    return [{stage: parts[i] for stage, parts in chunks.items()} for i in range(len(views))]


def _term(method: CLoVEPlus, context: Tensor, target: Tensor, view: View, other: View) -> Tensor:
    matching = method.config.matching
    matches = match_cells(
        view.geometry.signed_boxes(matching.coordinates),
        other.geometry.signed_boxes(matching.coordinates),
        tuple(context.shape[2:]),
        tuple(target.shape[2:]),
        matching.threshold,
        unit=matching.unit,
    )
    context, target = F.normalize(context, dim=1), F.normalize(target, dim=1)
    return clove_loss(context, target, matches, top_k=method.config.loss.top_k)


def whole_loss(
    vectors: list[Tensor],
    large: int,
    flipped: list[list[bool]] | None = None,
    *,
    less_chance: bool = False,
) -> Tensor:
    """VICReg (25, 25, 1), number by number, on (B, D) embeddings of the large views and others.

    With ``flipped``, image by image for each view, twice the distances of those that are flipped
    alike: every second one is. With ``less_chance`` squared covariances are those beyond what
    independent channels of a batch show.
    """
    distances = []
    for i in range(large):
        for j in range(len(vectors)):
            if j >= large or i < j:
                images = (vectors[i] - vectors[j]).square().mean(1)
                if flipped is not None:
                    both = zip(flipped[i], flipped[j], strict=True)
                    images = images * torch.tensor([2 * (one == other) for one, other in both])
                distances.append(images.mean())
    hinges, penalties = [], []
    for rows in vectors:
        centered = rows - rows.mean(0)
        count, width = rows.shape
        covariance = torch.zeros(width, width, dtype=rows.dtype)
        for row in centered:
            covariance = covariance + torch.outer(row, row) / (count - 1)
        deviations = (covariance.diagonal() + 1e-4).sqrt()
        hinges.append((1 - deviations).clamp(min=0).mean())
        squares = covariance.square()
        if less_chance:
            variances = covariance.diagonal()
            squares = squares - torch.outer(variances, variances) / (count - 1)
        penalties.append((squares - torch.diag(squares.diagonal())).sum() / width)
    invariance = sum(distances) / len(distances)
    return 25 * (invariance + sum(hinges) / len(hinges)) + sum(penalties) / len(penalties)


def expanded(method: CLoVEPlus, batch: ViewBatch) -> list[Tensor]:
    """The embeddings of all views as whole images; views of one size are normalised together."""
    vectors: list[Tensor] = []
    for role in ("global", "local"):
        views = [view for view in batch.views if view.role == role]
        if views:
            maps = method.encoder.backbone.maps(torch.cat([view.pixels for view in views]))
            vectors += method.whole_head.expander(maps["c5"].mean((2, 3))).chunk(len(views))
    return vectors
