"""Losses as pure functions: tensors in, tensors out, no state, no logging."""

from __future__ import annotations

from clove_ssl.losses.ranking import clove_loss
from clove_ssl.losses.regression import matched_cosine_loss

__all__ = ["clove_loss", "matched_cosine_loss"]
