"""What a config leaves open, decided for a machine and its data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Choice(Generic[T]):
    """A decision and its reason."""

    value: T
    reason: str
