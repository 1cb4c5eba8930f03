"""Multi-head self-attention over the cells of a feature map.

Queries, keys and values come from one stacked layer, so that LARS gives the
three a single trust ratio. There is no residual, no position and no dropout:
an output cell is a mixture of the cells of its own view.

Dimensions: B images, D channels, H heads, C = D / H, L = h * w cells.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from clove_ssl.layers.attention import attend
from clove_ssl.layers.normalization import scaled_units, unit_vectors


class SelfAttention(nn.Module):
    """What both kinds of attention share; they differ in the scores."""

    def __init__(self, dim: int, heads: int, *, bias: bool) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"dim={dim} is not a multiple of heads={heads}")
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=bias)
        self.out = nn.Linear(dim, dim)
        # As nn.MultiheadAttention begins, which counts all 3 * D outputs as one layer.
        nn.init.xavier_uniform_(self.qkv.weight)
        if bias:
            nn.init.zeros_(self.qkv.bias)
        nn.init.zeros_(self.out.bias)

    def forward(self, feature_map: Tensor) -> Tensor:
        """(B, D, h, w) -> (B, D, h, w)."""
        queries, keys, values = self._heads(feature_map)
        # The scale is in the queries already: 1 over a temperature, or 1 over root C.
        mixed = attend(queries, keys, values)  # (B, H, L, C)
        cells: Tensor = self.out(mixed.transpose(1, 2).flatten(2))  # (B, L, D)
        return cells.mT.reshape(feature_map.shape)

    def weights(self, feature_map: Tensor) -> Tensor:
        """How much each cell (row) takes from every cell (column): (B, H, L, L).

        The fused kernel of :meth:`forward` never forms them; ask when a picture
        or a metric is wanted, not in every step.
        """
        queries, keys, _ = self._heads(feature_map)
        return (queries @ keys.mT).softmax(-1)

    def weight_maps(self, feature_map: Tensor) -> Tensor:
        """The weights laid out as maps: (B, D, h, w) -> (B, H, h, w, h, w)."""
        weights, grid = self.weights(feature_map), feature_map.shape[2:]
        return weights.reshape(*weights.shape[:2], *grid, *grid)

    def _heads(self, feature_map: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (B, H, L, C) each; products of the first two are scores."""
        cells = feature_map.flatten(2).mT  # (B, L, D)
        stacked = self.qkv(cells).unflatten(-1, (3, self.heads, -1))  # (B, L, 3, H, C)
        queries, keys, values = stacked.unbind(2)  # (B, L, H, C) each
        queries, keys = self._comparable(queries, keys)
        return queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)

    def _comparable(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """What scores are products of, in the type of what is given."""
        raise NotImplementedError


class NormalizedSelfAttention(SelfAttention):
    """Mix each cell with the cells that look like it: softmax(cos(q, k) / temperature) v.

    Queries and keys have unit length, so scores cannot grow with the norm of
    the features, and the usual factor of one over root C has no place.

    Args:
        dim: Channels of the feature map, kept by the output.
        heads: Parallel attention heads; must divide ``dim``.
        temperature: Divides the cosines before the softmax.
        learn_temperature: Make the temperature a parameter (held as its logarithm).
    """

    def __init__(
        self,
        dim: int = 256,
        heads: int = 8,
        temperature: float = 0.2,
        *,
        learn_temperature: bool = False,
    ) -> None:
        super().__init__(dim, heads, bias=False)
        if temperature <= 0:
            raise ValueError(f"temperature={temperature} must be above 0")
        # One dimension, not zero: optimizers spare parameters of one dimension from decay.
        start = torch.full((1,), math.log(temperature))
        self.log_temperature = nn.Parameter(start) if learn_temperature else None
        self._fixed_temperature = temperature

    @property
    def temperature(self) -> float | Tensor:
        """What the cosines are divided by; a (1,) tensor where it is learned."""
        if self.log_temperature is None:
            return self._fixed_temperature
        return self.log_temperature.exp()

    def _comparable(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        # Scores are at most 1 / temperature apart from 0, so with 0.2 no cell outweighs another by
        # more than e^10: over 49 cells attention stays soft.
        if isinstance(self.temperature, Tensor):
            scaled = (unit_vectors(queries) / self.temperature).to(queries.dtype)
        else:
            scaled = scaled_units(queries, self.temperature)
        return scaled, scaled_units(keys, 1.0)


class PlainSelfAttention(SelfAttention):
    """Scaled dot products with biases, as in the released code of CLoVE.

    Args:
        dim: Channels of the feature map, kept by the output.
        heads: Parallel attention heads; must divide ``dim``.
    """

    def __init__(self, dim: int = 256, heads: int = 8) -> None:
        super().__init__(dim, heads, bias=True)

    def _comparable(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        return queries / math.sqrt(queries.shape[-1]), keys
