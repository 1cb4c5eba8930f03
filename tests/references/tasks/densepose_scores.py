"""DensePose average precision from its definition, with loops and no shortcuts.

Written against the description of the measure, for persons and detections as plain tuples:
a person is (box, area, points, mask), where points are (x, y, part, u, v) in 0..255 of the box or
None, and mask is a bitmap of the image; a detection is (box, score, iuv). Boxes are x, y, w, h.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

KAPPA = {
    **dict.fromkeys((1, 2), 0.351),
    **dict.fromkeys((3, 4), 0.107),
    **dict.fromkeys((5, 6), 0.126),
    **dict.fromkeys((7, 8, 9, 10), 0.237),
    **dict.fromkeys((11, 12, 13, 14), 0.173),
    **dict.fromkeys((15, 16, 17, 18), 0.142),
    **dict.fromkeys((19, 20, 21, 22), 0.128),
    **dict.fromkeys((23, 24), 0.150),
}

Distance = Callable[[tuple[int, float, float], tuple[int, float, float]], float]


def point_similarity(person, detection, distance: Distance) -> float:
    (x, y, w, h), _, points, _ = person
    (dx, dy, dw, dh), _, iuv = detection
    if points is None:
        return 0.0
    terms = []
    for px, py, part, u, v in points:
        if part == 0:
            continue
        column, row = math.trunc(px * w / 255 + x - dx), math.trunc(py * h / 255 + y - dy)
        term = 0.0
        if 0 <= column < int(dw) and 0 <= row < int(dh):
            said = iuv[:, row, column].tolist()
            if said[0] > 0:
                way = distance((int(part), u, v), (said[0], said[1] / 255, said[2] / 255))
                term = math.exp(-(way**2) / (2 * KAPPA[int(part)] ** 2))
        terms.append(term)
    return sum(terms) / len(terms) if terms else 0.0


def detection_mask(detection, size: tuple[int, int]) -> np.ndarray:
    (x, y, w, h), _, iuv = detection
    mask = np.zeros(size, bool)
    for row in range(iuv.shape[1]):
        for column in range(iuv.shape[2]):
            r, c = int(y) + row, int(x) + column
            inside = 0 <= r < min(size[0], int(y + h)) and 0 <= c < min(size[1], int(x + w))
            if inside and iuv[0, row, column] > 0:
                mask[r, c] = True
    return mask


def mask_overlap(person, detection, size: tuple[int, int]) -> float:
    mine, theirs = detection_mask(detection, size), person[3]
    union = (mine | theirs).sum()
    return float((mine & theirs).sum() / union) if union else 0.0


def box_overlap(a, b) -> float:
    across = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
    down = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
    shared = max(across, 0.0) * max(down, 0.0)
    return shared / (a[2] * a[3] + b[2] * b[3] - shared) if shared else 0.0


def similarity(kind: str, person, detection, size, distance: Distance) -> float:
    if kind == "segm":
        return mask_overlap(person, detection, size)
    points = point_similarity(person, detection, distance)
    if kind == "gps":
        return points
    return math.sqrt(points * mask_overlap(person, detection, size))


def judge_image(kind: str, persons, detections, size, distance, thresholds, limits):
    """For every threshold: (score, right, counts) of the 20 best detections; persons to find."""
    best = sorted(detections, key=lambda each: -each[1])[:20]
    ignored = [p[2] is None or not limits[0] <= p[1] <= limits[1] for p in persons]
    table = [[similarity(kind, p, d, size, distance) for p in persons] for d in best]
    taken_by: list[dict[int, int]] = []
    flags = [[all(ignored)] * len(best) for _ in thresholds]
    for row, threshold in enumerate(thresholds):
        owner: dict[int, int] = {}
        for number in range(len(best)):
            choice = None
            for wanted in (False, True):  # persons who count come first
                for who in range(len(persons)):
                    good = (
                        table[number][who] >= min(threshold, 1 - 1e-10) and table[number][who] > 0
                    )
                    if ignored[who] != wanted or who in owner.values() or not good:
                        continue
                    if choice is None or table[number][who] >= table[number][choice]:
                        choice = who
                if choice is not None:
                    break
            if choice is not None:
                owner[number] = choice
                flags[row][number] = ignored[choice]
        taken_by.append(owner)
    last = taken_by[-1]
    order = sorted(range(len(persons)), key=lambda who: ignored[who])
    for number, detection in enumerate(best):
        if number in last:
            continue
        near, who_is_near = 0.8, None
        for who in order:
            overlap = box_overlap(detection[0], persons[who][0])
            if who not in last.values() and overlap >= near:
                near, who_is_near = overlap, who
        if who_is_near is not None:
            for row in range(len(thresholds)):
                flags[row][number] = ignored[who_is_near]
            if ignored[who_is_near]:
                last[number] = who_is_near
    rows = []
    for row in range(len(thresholds)):
        result = []
        for number, detection in enumerate(best):
            right = number in taken_by[row]
            area = detection[0][2] * detection[0][3]
            outside = not right and not limits[0] <= area <= limits[1]
            result.append((detection[1], right, not (flags[row][number] or outside)))
        rows.append(result)
    return rows, ignored.count(False)


def average_precision(kind: str, images, distance: Distance, thresholds, limits) -> list[float]:
    """Mean precision over 101 recalls, for every threshold; NaN without persons."""
    judged = [
        judge_image(kind, persons, detections, size, distance, thresholds, limits)
        for size, persons, detections in images
    ]
    total = sum(count for _, count in judged)
    if total == 0:
        return [math.nan] * len(thresholds)
    means = []
    for row in range(len(thresholds)):
        everything = [each for rows, _ in judged for each in rows[row]]
        ranked = sorted(everything, key=lambda each: -each[0])
        curve, hits, errors = [], 0, 0
        for _, right, counts in ranked:
            hits, errors = hits + (right and counts), errors + (not right and counts)
            curve.append((hits / total, hits / (hits + errors) if hits + errors else 0.0))
        precisions = [
            max((p for reached, p in curve if reached >= step / 100), default=0.0)
            for step in range(101)
        ]
        means.append(sum(precisions) / 101)
    return means
