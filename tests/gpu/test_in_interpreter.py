"""Without a GPU, Triton's interpreter runs the tiny cases of the kernels on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest


def has_interpreter() -> bool:
    """Whether Triton is here, in a version whose interpreter works with today's NumPy."""
    if find_spec("triton") is None:
        return False
    return tuple(int(part) for part in version("triton").split(".")[:2]) >= (3, 9)


@pytest.mark.skipif(not has_interpreter(), reason="needs Triton 3.9 or newer")
def test_kernels_agree_with_torch_in_tritons_interpreter() -> None:
    """In a process of its own: the interpreter has to be chosen at import."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", "tiny", "gpu/kernels"],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTEST_ADDOPTS": "-p no:cacheprovider"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "142 passed" in done.stdout, done.stdout[-3000:]
