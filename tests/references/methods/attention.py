"""Normalized multi-head self-attention, one head and one cell at a time, in float64."""

from __future__ import annotations

import numpy as np


def normalized_self_attention(
    feature_map: np.ndarray,  # (D, h, w)
    qkv: np.ndarray,  # (3 D, D)
    out_weight: np.ndarray,  # (D, D)
    out_bias: np.ndarray,  # (D,)
    *,
    heads: int,
    temperature: float,
) -> np.ndarray:
    """softmax(cos(q, k) / temperature) v per head, heads joined, output layer."""
    dim = len(feature_map)
    cells = feature_map.reshape(dim, -1).T  # (L, D)
    query_weight, key_weight, value_weight = qkv.reshape(3, dim, dim)
    size = dim // heads
    result = []
    for cell in cells:
        joined = []
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            query = query_weight[part] @ cell
            scores = []
            for other in cells:
                key = key_weight[part] @ other
                cosine = query @ key / (np.linalg.norm(query) * np.linalg.norm(key))
                scores.append(np.exp(cosine / temperature))
            values = [value_weight[part] @ other for other in cells]
            total = sum(scores)
            joined.append(sum(s / total * v for s, v in zip(scores, values, strict=True)))
        result.append(out_weight @ np.concatenate(joined) + out_bias)
    return np.stack(result).T.reshape(feature_map.shape)
