"""Which tests need a GPU, and which only the kernels that one would run."""

from __future__ import annotations

import os

import pytest
import torch

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"

full_size = pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
NEEDS_GPU = [pytest.mark.gpu, full_size]
# With TRITON_INTERPRET=1 kernels run on the CPU, a few numbers at a time.
NEEDS_KERNELS = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not ON_GPU and os.environ.get("TRITON_INTERPRET") != "1", reason="needs a CUDA device"
    ),
]
