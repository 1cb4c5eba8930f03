"""Losses as pure functions: tensors in, tensors out, no state, no logging."""

from __future__ import annotations

from clove_ssl.methods.cells import matched_cosine_loss
from clove_ssl.methods.clove.loss import clove_loss
from clove_ssl.methods.contrastive import info_nce

__all__ = ["clove_loss", "info_nce", "matched_cosine_loss"]
