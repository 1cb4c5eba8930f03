"""A first run on a GPU launches no kernel that its helper has not compiled before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from builders.gpu_marks import NEEDS_GPU

from clove_ssl.cores import available_cores
from clove_ssl.pretraining.compile.kernels import FEWEST_CORES

pytestmark = [
    *NEEDS_GPU,
    pytest.mark.skipif(available_cores() < FEWEST_CORES, reason="needs several cores"),
]


@pytest.mark.parametrize("name", ["clove-r18-small", "clove-plus-r18-small", "densecl-r18-small"])
def test_the_first_step_compiles_nothing_by_itself(name: str, tmp_path: Path) -> None:
    kernels, run = tmp_path / "kernels", tmp_path / "run"
    words = f"pretrain {name} --data scenes --out {run} --steps 1 --probe.every-epochs None"
    subprocess.run(
        [sys.executable, "-m", "clove_ssl", *words.split()],
        env={**os.environ, "TRITON_CACHE_DIR": str(kernels)},
        check=True,
    )
    (mark,) = kernels.glob("clove-*")  # made when all was compiled
    made = [*kernels.glob("*/*.cubin"), *kernels.glob("*/*.so")]
    assert len([path for path in made if path.suffix == ".cubin"]) > 20
    # What is learned is measured after the last step, by kernels of its own.
    end = (run / "export" / "backbone.safetensors").stat().st_mtime
    late = [path.name for path in made if mark.stat().st_mtime < path.stat().st_mtime < end]
    assert late == []
