"""Kernels that are compiled before anybody launches them, by processes that may fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.methods.recipes import recipe
from clove_ssl.pretraining.compile import kernels
from clove_ssl.pretraining.compile.kernels import Helper, Wanted, waiting_helper
from clove_ssl.training.numerics import Precision
from clove_ssl.training.processes import Process

pytest.importorskip("triton")

BF16 = Precision("bf16", "as asked", "cuda")
HOPPER = (9, 0)
RENDERING = {
    *("resize_across", "resize_down", "colour"),
    *("blur_weights", "blur_across", "blur_down"),
}
GPU = Process(0, 1, 0, 1, torch.device("cuda", 0))

# For a process of its own: what is put in the place of torch's and Triton's parts stays there.
NOTING = """
import json, torch
from pathlib import Path
from clove_ssl.methods.recipes import recipe
from clove_ssl.pretraining.compile.launches import *
from clove_ssl.training.numerics import Precision
torch.set_num_threads(1)
pretend_gpu((9, 0))
precision = Precision("bf16", "", "cuda")
"""
NAMES = """
method = outline(recipe("{recipe}", Path("out")))
with noted() as rendering:
    render_unseen(method.views(), precision.dtype)
with noted() as step:
    update_unseen(recipe("{recipe}", Path("out")).optimizer)
    step_unseen(method, 32, precision, dtype=precision.dtype)
print(json.dumps([[each.kernel.__name__ for each in found] for found in (rendering, step)]))
"""
COMPILING = """
specs = outline(recipe("moco-r18-small", Path("out"))).views()
with noted() as launches:
    render_unseen(specs, precision.dtype)
    render_unseen(specs, precision.dtype)
print(len(launches), all(each.kernel.hash for each in launches))
launches[0].kernel.run(*launches[0].arguments, grid=(1,), warmup=True, **launches[0].options)
"""


def printed(program: str, folder: Path) -> str:
    """What a program prints, whose kernels lie in a folder."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder), "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=120
    )
    return done.stdout


@pytest.fixture
def wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wanted:
    """Kernels of a run that has compiled none."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "kernels"))
    (tmp_path / "kernels").mkdir()
    return Wanted(bf16_run(tmp_path), 32, BF16, HOPPER)


def ordered(wanted: Wanted) -> Helper:
    """A helper that has been told what to do."""
    helper = Helper()
    with helper._orders:
        helper._order(wanted)
    return helper


def bf16_run(folder: Path) -> PretrainConfig:
    return replace(recipe("clove-r18-small", folder / "out"), precision="bf16")


@pytest.mark.parametrize("name", ["clove-r18-small", "clove-plus-r18-small", "moco-r18-small"])
def test_kernels_of_rendering_and_of_both_passes_are_seen_without_a_gpu(
    name: str, tmp_path: Path
) -> None:
    rendering, step = json.loads(printed(NOTING + NAMES.format(recipe=name), tmp_path))
    assert set(rendering) == RENDERING
    norms = {"sums", "moments", "pool", "normalize", "gradient_sums", "slopes", "input_gradients"}
    assert norms | {"_convolve", "_tap_gradients"} <= set(step)
    if name.startswith("clove"):
        assert {"_squares", "_ratios", "_update"} <= set(step)
        assert {"_attend", "_attend_back", "_scale", "_scale_back"} <= set(step)
    assert not list(tmp_path.glob("*/*.cubin"))  # seen, not compiled


def test_a_kernel_is_noted_once_and_compiled_for_the_gpu_that_is_not_there(tmp_path: Path) -> None:
    count, named = printed(NOTING + COMPILING, tmp_path).split()
    assert int(count) == len(RENDERING)
    assert named == "True"  # by then, for names in the cache may depend on the order
    (kernel,) = tmp_path.glob("*/resize_across.json")
    assert json.loads(kernel.read_text())["target"]["arch"] == 90


@pytest.mark.forks
def test_what_was_seen_of_a_step_is_compiled_even_if_it_does_not_come_to_its_end(
    wanted: Wanted, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = wanted.mark.parent / "made"
    found: list[object] = []

    def step(*_: object, **__: object) -> None:
        found.append(SimpleNamespace(compile=made.touch))
        raise RuntimeError("decided by a value")

    unseen = ("render_unseen", "update_unseen")
    for name in ("start_repeatably", "pretend_gpu", "compile_driver", *unseen):
        monkeypatch.setattr(kernels, name, lambda *_, **__: None)
    monkeypatch.setattr(kernels, "outline", lambda _: SimpleNamespace(views=tuple))
    monkeypatch.setattr(kernels, "noted", lambda: nullcontext(found))
    monkeypatch.setattr(kernels, "step_unseen", step)
    ordered(wanted).wait()
    assert made.exists()
    assert wanted.mark.exists()


def _raise(_: Wanted) -> None:
    raise RuntimeError


@pytest.mark.forks
def test_a_helper_that_fails_says_nothing_and_may_try_again(
    wanted: Wanted, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kernels, "compile_wanted", _raise)
    ordered(wanted).wait()
    assert capfd.readouterr() == ("", "")
    assert not wanted.mark.exists()


@pytest.mark.forks
def test_a_helper_that_hangs_is_ended_and_not_waited_for_again(
    wanted: Wanted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "compile_wanted", lambda _: time.sleep(600))
    monkeypatch.setattr(kernels, "LONGEST_WAIT", 0.2)
    helper = ordered(wanted)
    helper.wait()
    assert not helper._process.is_alive()
    assert wanted.mark.exists()


@pytest.mark.forks
def test_nobody_waits_for_a_helper_that_has_nothing_to_do(
    wanted: Wanted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_leave_the_run_alone", lambda: time.sleep(600))
    wanted.mark.touch()
    helper, start = ordered(wanted), time.monotonic()
    helper.wait()
    assert time.monotonic() - start < kernels.LONGEST_WAIT / 2
    assert not helper._process.is_alive()


@pytest.mark.forks
def test_helpers_end_with_a_run_that_is_killed(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers"
    program = f"""
import os, time
from pathlib import Path
from clove_ssl.methods.recipes import recipe
from clove_ssl.pretraining.compile import kernels
from clove_ssl.training.numerics import Precision
def work(_):
    processes = kernels._share_out([lambda: time.sleep(600)])
    Path({str(numbers)!r}).write_text(f"{{os.getpid()}} {{processes[0]}}\\n")
    time.sleep(600)
kernels.compile_wanted = work
config = recipe("clove-r18-small", Path("out"))
helper = kernels.Helper()
helper._order(kernels.Wanted(config, 32, Precision("bf16", "", "cuda"), (9, 0)))
helper.wait()
"""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    run = subprocess.Popen([sys.executable, "-c", program], env=environment)
    try:
        _wait_until(lambda: numbers.exists() and numbers.read_text().endswith("\n"))
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
    helpers = [int(number) for number in numbers.read_text().split()]
    _wait_until(lambda: not any(_runs(helper) for helper in helpers))


def _wait_until(happens: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.05)


def _runs(number: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with a GPU and many cores, as far as one can tell before the GPU is used."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(kernels, "DRIVERS", (str(tmp_path),))
    monkeypatch.setattr(kernels, "available_cores", lambda: 16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: HOPPER)


def compiles(wanted: Wanted, process: Process = GPU, *, images: int = 32) -> bool:
    """Whether the helper of a run has something to do."""
    helper = waiting_helper(wanted.config)
    assert helper is not None
    helper.start(wanted.config, process, images=images)
    helper.wait()
    done = wanted.mark.parent / "done"
    compiled = done.exists()
    done.unlink(missing_ok=True)
    return compiled


@pytest.mark.forks
@pytest.mark.usefixtures("machine")
def test_kernels_that_are_there_are_not_compiled_again(
    wanted: Wanted, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = wanted.mark.parent / "done"
    monkeypatch.setattr(kernels, "compile_wanted", lambda _: done.touch())
    assert compiles(wanted)
    assert wanted.mark.exists()
    assert not compiles(wanted)
    assert compiles(wanted, images=48)  # another run may need others
    assert compiles(replace(wanted, config=replace(wanted.config, precision="fp32")))
    assert not compiles(wanted, replace(GPU, device=torch.device("cpu")), images=64)


@pytest.mark.forks
@pytest.mark.usefixtures("machine")
def test_a_helper_sees_no_gpu_and_ends_when_it_is_forgotten(
    wanted: Wanted, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = wanted.mark.parent / "seen"
    look = partial(os.environ.get, "CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(kernels, "compile_wanted", lambda _: seen.write_text(str(look())))
    ordered(wanted).wait()
    assert seen.read_text() == ""
    forgotten = waiting_helper(wanted.config)
    assert forgotten is not None
    process = forgotten._process
    del forgotten
    process.join(60)
    assert process.exitcode == 0


@pytest.mark.usefixtures("machine")
def test_a_run_without_use_for_a_helper_has_none(
    wanted: Wanted, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert waiting_helper(replace(wanted.config, compile="always")) is None
    for name, value in {
        "available_cores": lambda: 2,
        "has_triton": lambda: False,
        "DRIVERS": ("/dev/no-such-driver",),
    }.items():
        with monkeypatch.context() as patch:
            patch.setattr(kernels, name, value)
            assert waiting_helper(wanted.config) is None
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_initialized", lambda: True)
        assert waiting_helper(wanted.config) is None
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert waiting_helper(wanted.config) is None


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("error", [OSError, AssertionError])
def test_a_helper_that_cannot_be_started_is_done_without(
    error: type[Exception], wanted: Wanted, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(kernels, "Helper", fail)
    assert waiting_helper(wanted.config) is None
