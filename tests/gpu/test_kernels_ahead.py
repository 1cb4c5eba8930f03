"""A first run on a GPU launches no kernel that its helper does not compile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from builders.gpu_marks import NEEDS_GPU

from clove_ssl.cores import available_cores
from clove_ssl.pretraining.compile.kernels import FEWEST_CORES

pytestmark = [
    *NEEDS_GPU,
    pytest.mark.skipif(available_cores() < FEWEST_CORES, reason="needs several cores"),
]

# For a process of its own: what is put in the place of torch's and Triton's parts stays there.
COMPILING = """
from pathlib import Path
from clove_ssl.methods.recipes import recipe
from clove_ssl.pretraining.compile.kernels import Wanted, compile_wanted
from clove_ssl.training.numerics import Precision
config = recipe("{name}", Path("out"))
wanted = Wanted(config, config.batch_size, Precision("bf16", "", "cuda"), {capability})
compile_wanted(wanted)
wanted.mark.touch()
"""


@pytest.mark.parametrize("name", ["clove-r18-small", "clove-plus-r18-small", "densecl-r18-small"])
def test_the_first_step_launches_what_was_compiled_ahead(name: str, tmp_path: Path) -> None:
    run, of_run, of_helper = (tmp_path / folder for folder in ("run", "of-run", "of-helper"))
    words = f"pretrain {name} --data scenes --out {run} --steps 1 --probe.every-epochs None"
    python(of_run, "-m", "clove_ssl", *words.split())
    program = COMPILING.format(name=name, capability=torch.cuda.get_device_capability())
    python(of_helper, "-c", program, CUDA_VISIBLE_DEVICES="")
    assert marks(of_run) == marks(of_helper)  # both were told the same
    # What is learned is measured after the last step, by kernels of its own.
    end = (run / "export" / "backbone.safetensors").stat().st_mtime
    assert len(compiled(of_helper)) > 20
    # Not by times: the run may meet a kernel while its helper compiles it, and does so, too.
    assert compiled(of_run, before=end) <= compiled(of_helper)


def python(kernels: Path, *words: str, **environment: str) -> None:
    """Have Python do something, and Triton leave its kernels in a folder."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(kernels), **environment}
    subprocess.run([sys.executable, *words], env=environment, check=True)


def marks(kernels: Path) -> set[str]:
    return {path.name for path in kernels.glob("clove-*")}


def compiled(kernels: Path, *, before: float = float("inf")) -> set[tuple[str, str]]:
    """Names of kernels, each with that of its folder, which stands for all it is compiled for."""
    found = kernels.glob("*/*.cubin")
    return {(path.name, path.parent.name) for path in found if path.stat().st_mtime < before}
