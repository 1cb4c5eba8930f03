"""Fixtures of all tests."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

# The first call of a test pays for torch's lazy start-up, which no deadline survives.
EXAMPLES = int(os.environ.get("CLOVE_EXAMPLES", "20"))  # of a property; more find more
settings.register_profile("clove", deadline=None, max_examples=EXAMPLES, derandomize=True)
settings.load_profile("clove")

GOLDEN = Path(os.environ.get("CLOVE_GOLDEN", Path(__file__).parent / "golden"))
DATA = Path(os.environ.get("CLOVE_DATA", Path(__file__).parents[2] / "shared" / "data"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-recorded", action="store_true", help="rewrite recorded losses")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that fork come first: once autograd has threads, forked processes cannot train."""
    items.sort(key=lambda item: item.get_closest_marker("forks") is None)
    slow = set((Path(__file__).parent / "slow.txt").read_text().splitlines())
    for item in items:
        if item.nodeid in slow:
            item.add_marker(pytest.mark.slow)


def golden_file(name: str) -> Path:
    """The path of recorded vectors, which a folder that was named must hold."""
    path = GOLDEN / name
    if not path.exists():
        absent = pytest.fail if "CLOVE_GOLDEN" in os.environ else pytest.skip
        absent(f"no golden file {path}")
    return path


@pytest.fixture
def golden() -> Callable[[str], Mapping[str, np.ndarray]]:
    """Reader of recorded vectors: ``golden("methods/clove_loss.npz")``."""

    def read(name: str) -> Mapping[str, np.ndarray]:
        path = golden_file(name)
        with np.load(path) as arrays:
            return dict(arrays)

    return read


@pytest.fixture
def data_folder() -> Path:
    """Folder of real photos and labels; tests that need it skip where it is absent."""
    if not DATA.is_dir():
        pytest.skip(f"no data packs in {DATA}")
    return DATA


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums are cut by the number of threads; processes that a test forks have only one."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the caches of all tests: pytest would list them before it makes another."""
    return tmp_path_factory.mktemp("caches")


@pytest.fixture(autouse=True)
def cache(caches: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test touches the user's own cache."""
    folder = Path(tempfile.mkdtemp(dir=caches))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs end without being measured and drawn, which takes longer than they do."""
    from clove_ssl.report import command

    monkeypatch.setattr(command, "_measure_and_paint", lambda *_: None)


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
