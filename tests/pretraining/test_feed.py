"""A feed that fails ends its workers, which ignore signals and would be waited for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
FAILING_FEED = """
from pathlib import Path
import torch
from builders.runs.tiny_runs import tiny_config
from clove_ssl.data.sources import BadFiles
from clove_ssl.data.loading import load_batches
from clove_ssl.data.order import ImageOrder, BatchOrder
from clove_ssl.data.reading import EncodedImages
from clove_ssl.data.sources import open_source
from clove_ssl.pretraining import feed
from clove_ssl.training.processes import Process

class Failing:
    "A renderer on a device that has no room, say."
    def __init__(self, *arguments, **options): pass
    def render(self, batch): raise RuntimeError("no kernel for this image")

config = tiny_config(Path("unused"))
source = open_source(config.data)
reader = EncodedImages(source, config.method.view_specs(), config.data, seed=0, keeps_jpegs=False)
order = BatchOrder(ImageOrder(len(source), 0), batch_size=2, processes=1, rank=0, micro_batch=2)
loader = load_batches(
    reader, order, workers=2, prefetch=2, start_step=0, total_steps=9, pin_memory=False
)
feed.DeviceRenderer = Failing
process = Process(0, 1, 0, 1, torch.device("cpu"))
bad = BadFiles(config.data, len(source))
feed.DeviceFeed(loader, reader, process, bad_files=bad, dtype=torch.float32, decoder=None)
"""


def test_a_failure_in_the_first_rendering_ends_the_process(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FAILING_FEED],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )
    assert ended.returncode == 1
    assert ended.stderr.rstrip().endswith("RuntimeError: no kernel for this image")
