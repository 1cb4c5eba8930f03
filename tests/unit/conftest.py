"""Fixtures of unit tests: a cache and a compiler that no other test has touched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test touches the user's own cache."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """A compiler without graphs, counts or another test's settings."""
    import torch
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    with torch._functorch.config.patch(activation_memory_budget=1.0):
        yield
    torch._dynamo.reset()
