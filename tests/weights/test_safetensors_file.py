"""Files that depend on their content alone."""

from __future__ import annotations

import torch
from safetensors.torch import load

from clove_ssl.weights.safetensors_file import to_bytes


def test_the_same_content_gives_the_same_bytes() -> None:
    state = {"b": torch.arange(3.0), "a": torch.ones(2, 2, dtype=torch.float16)}
    metadata = {f"key {n}": "ü\n" * n for n in range(8)}
    files = {to_bytes(state, metadata) for _ in range(8)}
    files |= {to_bytes(state, dict(reversed(metadata.items())))}
    (only,) = files
    found = load(only)
    assert all(torch.equal(found[name], state[name]) for name in state)
    assert int.from_bytes(only[:8], "little") % 8 == 0
