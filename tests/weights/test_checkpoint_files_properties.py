"""Whatever happens to the bytes of a checkpoint, it is read, or refused in one sentence."""

from __future__ import annotations

import argparse
import io
import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from clove_ssl.errors import UserError
from clove_ssl.weights.checkpoint_files import read_content


def with_torch(new: bool) -> bytes:
    buffer = io.BytesIO()
    content = {"model": {"w": torch.arange(6.0)}, "opt": argparse.Namespace(a=1), "n": np.ones(2)}
    torch.save(content, buffer, _use_new_zipfile_serialization=new)
    return buffer.getvalue()


FILES: dict[str, Callable[[], bytes]] = {
    "pickle": lambda: pickle.dumps({"model": {"w": np.arange(6.0)}, "n": [1, "a"]}, protocol=2),
    "new pickle": lambda: pickle.dumps({"model": {"w": np.arange(6.0)}}, protocol=4),
    "torch": lambda: with_torch(new=True),
    "old torch": lambda: with_torch(new=False),
    "safetensors": lambda: save({"w": torch.arange(6.0)}),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_changed_file_is_read_or_refused(
    kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    original = FILES[kind]()
    path: Path = tmp_path_factory.mktemp("files") / "weights"
    path.write_bytes(original)
    assert read_content(path).states

    @settings(max_examples=150)
    @given(
        changes=st.lists(
            st.tuples(st.integers(0, len(original) - 1), st.integers(0, 255)), max_size=4
        ),
        length=st.integers(0, len(original)) | st.just(len(original)),
    )
    def check(changes: list[tuple[int, int]], length: int) -> None:
        damaged = bytearray(original)
        for position, value in changes:
            damaged[position] = value
        path.write_bytes(damaged[:length])
        with suppress(UserError):
            read_content(path)

    check()
