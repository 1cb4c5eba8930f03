"""CLoVE's two losses and the l2 loss, one cell at a time; written to be read, not to be fast.

``context`` (B, D, h, w), ``target`` (B, D, h', w'), ``matches`` (B, h*w, h'*w').
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

Vector = list[float]


def cells_of(feature_map: Tensor) -> list[Vector]:
    """Cells of one (D, h, w) map in row-major order."""
    return feature_map.flatten(1).T.tolist()


def dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def cosine(a: Vector, b: Vector) -> float:
    return dot(a, b) / math.sqrt(dot(a, a) * dot(b, b))


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def hard_negatives(
    query: Vector,
    candidates: list[Vector],
    similarity: Callable[[Vector, Vector], float],
    *,
    top_k: int,
    drop: int,
) -> list[Vector]:
    """The most similar candidates, without the very most similar ones."""
    ranked = sorted(candidates, key=lambda key: similarity(query, key), reverse=True)
    return ranked[drop:top_k]


def mean_vector(vectors: list[Vector]) -> Vector:
    return [mean(list(channel)) for channel in zip(*vectors, strict=True)]


def queries_of(
    context: Tensor, target: Tensor, matches: Tensor
) -> list[list[tuple[Vector, list[Vector], list[Vector]]]]:
    """For every image its query cells, each with the cells it matches and the others."""
    images = []
    for queries, keys, mask in zip(context, target, matches.tolist(), strict=True):
        image = []
        for query, row in zip(cells_of(queries), mask, strict=True):
            candidates = list(zip(cells_of(keys), row, strict=True))
            matched = [key for key, match in candidates if match]
            others = [key for key, match in candidates if not match]
            image.append((query, matched, others))
        images.append(image)
    return images


def release_loss(
    context: Tensor,
    target: Tensor,
    matches: Tensor,
    *,
    positive_weight: float = 2.0,
    margin: float = 100.0,
    top_k: int = 10,
    drop: int = 1,
    vectors: bool = False,
    only_matched: bool = False,
    skip_unmatched: bool = False,
) -> float:
    """One hinge per image on means of -2 cos; inputs are unit vectors."""
    losses = []
    for image in queries_of(context, target, matches):
        positives, negatives = [], []
        for query, matched, others in image:
            positives += [-2 * dot(query, key) for key in matched]
            hard = hard_negatives(query, others, dot, top_k=top_k, drop=drop)
            if hard and (matched or not only_matched):
                together = cosine(query, mean_vector(hard))
                apart = mean([dot(query, key) for key in hard])
                negatives.append(-2 * (together if vectors else apart))
        if positives or not skip_unmatched:
            p = mean(positives) if positives else 0.0
            n = mean(negatives) if negatives else 0.0
            losses.append(max(0.0, positive_weight * p - n + margin))
    return mean(losses) if losses else 0.0


def paper_loss(
    context: Tensor,
    target: Tensor,
    matches: Tensor,
    *,
    positive_weight: float = 2.0,
    margin: float = 100.0,
    top_k: int = 10,
    drop: int = 1,
    cosines: bool = False,
    average_pairs: bool = False,
) -> float:
    """Eq. 2: one hinge per pair, negatives averaged as vectors before the cosine."""
    losses = []
    for image in queries_of(context, target, matches):
        hinges = []
        for query, matched, others in image:
            hard = hard_negatives(query, others, cosine, top_k=top_k, drop=drop)
            negative = 0.0
            if hard and cosines:
                negative = mean([cosine(query, key) for key in hard])
            elif hard:
                negative = cosine(query, mean_vector(hard))
            for key in matched:
                gap = -positive_weight * cosine(query, key) + negative
                hinges.append(max(0.0, gap + margin))
        losses.append(mean(hinges) if hinges and average_pairs else sum(hinges))
    return mean(losses)


def l2_loss(context: Tensor, target: Tensor, matches: Tensor) -> float:
    """-2 mean cos over the pairs of an image, 0 without a pair; inputs are unit vectors."""
    losses = []
    for image in queries_of(context, target, matches):
        pairs = [-2 * dot(query, key) for query, matched, _ in image for key in matched]
        losses.append(mean(pairs) if pairs else 0.0)
    return mean(losses)
