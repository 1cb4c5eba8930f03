"""Whether this machine and installation can train.

Every ``check_*`` function measures one thing; where the judgement is more than
a glance, a ``judge_*`` function makes it from plain numbers. Torch is imported
late, so that a broken installation is reported instead of being a traceback.
"""

from __future__ import annotations

import platform
import re
import resource
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

from clove_ssl.cores import allowed_cores, available_memory, core_quota
from clove_ssl.errors import counted

GIB = 2**30
SHARED_MEMORY = Path("/dev/shm")
FORMATS = {"JPEG": "jpg", "PNG": "zlib", "WebP": "webp"}  # with Pillow's names of their decoders
NOT_FOR_USERS = frozenset({"dev"})

Version = tuple[int, ...]
State = Literal["ok", "look", "problem"]


@dataclass(frozen=True)
class Check:
    """What was looked at, how it is, and what to do about it."""

    name: str
    state: State
    text: str


def machine_checks() -> Iterator[Check]:
    """All checks but the self test, in the order they are shown."""
    yield Check("Python", "ok", f"{platform.python_version()} ({sys.executable})")
    packages = [check_package(name) for name in ("torch", "torchvision")]
    yield from packages
    if all(check.state == "ok" for check in packages):
        yield check_operators()
        yield from gpu_checks()
    yield judge_cores(allowed_cores(), core_quota())
    yield judge_memory(available_memory())
    yield judge_disk(shutil.disk_usage(Path.cwd()).free, str(Path.cwd()))
    yield judge_shared_memory(free_shared_memory())
    yield judge_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield check_formats()
    yield from judge_extras(requirements(), is_installed)


def requirements() -> list[str]:
    """What clove-ssl asks for; nothing when it runs from a folder without being installed."""
    try:
        return requires("clove-ssl") or []
    except PackageNotFoundError:
        return []


def check_package(name: str) -> Check:
    """Whether a package is installed, new enough, and can be imported."""
    try:
        installed = version(name)
        installed = str(getattr(import_module(name), "__version__", installed))
    except PackageNotFoundError:
        return Check(name, "problem", f"not installed. Type: pip install {name}")
    except Exception as error:  # a broken binary fails in many ways
        reason = f"{type(error).__name__}: {error}"
        return Check(name, "problem", f"cannot be imported ({reason}). Install it again.")
    return judge_version(name, installed, minimum_version(name, requirements()))


def judge_version(name: str, installed: str, minimum: Version) -> Check:
    """Compare an installed version with the lowest one that is supported."""
    if numbers(installed) >= minimum:
        return Check(name, "ok", installed)
    wanted = ".".join(map(str, minimum))
    return Check(
        name, "problem", f"{installed} is too old. Type: pip install --upgrade '{name}>={wanted}'"
    )


def minimum_version(name: str, asked: Sequence[str]) -> Version:
    """The lowest version of a package that requirement lines allow."""
    found = (re.match(rf"{name}\s*\(?>=([0-9.]+)", line) for line in asked)
    return next((numbers(match[1]) for match in found if match), ())


def numbers(text: str) -> Version:
    """The numbers a version starts with: "2.15.0+cu128" is (2, 15, 0)."""
    match = re.match(r"[0-9.]+", text)
    return tuple(int(part) for part in match[0].split(".") if part) if match else ()


def check_operators() -> Check:
    """Whether torchvision was built for the torch beside it."""
    import torch
    import torchvision

    try:
        torchvision.ops.nms(torch.tensor([[0.0, 0.0, 1.0, 1.0]]), torch.ones(1), 0.5)
    except Exception as error:
        return Check(
            "operators",
            "problem",
            f"torchvision {torchvision.__version__} does not fit torch {torch.__version__} "
            f"({error}). Type: pip install --upgrade torch torchvision",
        )
    return Check("operators", "ok", "torch and torchvision fit together")


def gpu_checks() -> Iterator[Check]:
    """One line per GPU, or why there is none."""
    import torch

    if not torch.cuda.is_available():
        has_driver = shutil.which("nvidia-smi") is not None
        yield judge_no_gpu(has_driver=has_driver, built_for_cuda=torch.version.cuda is not None)
        return
    count = torch.cuda.device_count()
    for index in range(count):
        facts = torch.cuda.get_device_properties(index)
        yield judge_gpu(index, facts.name, facts.total_memory, has_bf16=facts.major >= 8)
    if count > 1:
        yield judge_nccl(torch.distributed.is_available() and torch.distributed.is_nccl_available())


def judge_no_gpu(*, has_driver: bool, built_for_cuda: bool) -> Check:
    """A machine on which torch sees no GPU."""
    if has_driver and not built_for_cuda:
        return Check(
            "GPU",
            "problem",
            "there is an NVIDIA driver, but torch was built without CUDA. Install a CUDA build of "
            "torch and torchvision.",
        )
    if has_driver:
        return Check(
            "GPU", "problem", "torch sees none. Look at nvidia-smi and CUDA_VISIBLE_DEVICES."
        )
    return Check("GPU", "look", "none; a CPU is enough for some hundred photos, not for more")


def judge_gpu(index: int, name: str, memory: int, *, has_bf16: bool) -> Check:
    """One GPU."""
    text = f"{name}, {memory / GIB:.0f} GiB"
    if has_bf16:
        return Check(f"GPU {index}", "ok", f"{text}, bf16")
    return Check(f"GPU {index}", "look", f"{text}, no bf16: runs use fp16, which overflows sooner")


def judge_nccl(is_available: bool) -> Check:
    """Several GPUs have to talk to each other."""
    if is_available:
        return Check("NCCL", "ok", "available: torchrun can use all GPUs")
    return Check("NCCL", "problem", "this torch has no NCCL, so only one GPU can be used at a time")


def judge_cores(cores: int, quota: float | None) -> Check:
    """Data loading needs about as many cores as a GPU is fast; runs heed the quota themselves."""
    usable = cores if quota is None else min(cores, quota)
    text = f"{cores}" if usable == cores else f"{cores}, of which the container grants {usable:g}"
    if usable < 2:
        return Check("CPU cores", "look", f"{text}; reading images and training will share it")
    return Check("CPU cores", "ok", text)


def judge_memory(free: int | None) -> Check:
    """Every worker is a process with its own copy of Python and torch."""
    if free is None:
        return Check("memory", "ok", "not measured on this system")
    text = f"{free / GIB:.1f} GiB available"
    if free < 4 * GIB:
        return Check("memory", "look", f"{text}. Use few workers, such as --data.workers 2.")
    return Check("memory", "ok", text)


def judge_disk(free: int, folder: str) -> Check:
    """A run writes checkpoints of several times the size of the network."""
    text = f"{free / GIB:.1f} GiB free in {folder}"
    if free < GIB:
        return Check("disk", "problem", f"{text}. A checkpoint may not fit; free some space.")
    if free < 10 * GIB:
        return Check("disk", "look", f"{text}. A ResNet-50 run with two checkpoints needs a few.")
    return Check("disk", "ok", text)


def free_shared_memory() -> int | None:
    """Free bytes of ``/dev/shm``; ``None`` where there is no such place."""
    return shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else None


def judge_shared_memory(free: int | None) -> Check:
    """Workers hand batches over through shared memory, and die when it is full."""
    if free is None:
        return Check("shared memory", "ok", "this system has no /dev/shm to run out of")
    text = f"{free / GIB:.1f} GiB free in {SHARED_MEMORY}"
    if free >= GIB:
        return Check("shared memory", "ok", text)
    return Check(
        "shared memory",
        "look",
        f"{text}; data loader workers may crash with a bus error. Start the container with "
        "--shm-size=8g or --ipc=host, or train with --data.workers 0.",
    )


def judge_open_files(limit: int) -> Check:
    """Batches in shared memory are open files."""
    if limit == resource.RLIM_INFINITY:
        return Check("open files", "ok", "no limit")
    if limit >= 1024:
        return Check("open files", "ok", f"{limit:,} at once")
    return Check("open files", "look", f"only {limit} at once. Type: ulimit -n 4096")


def check_formats() -> Check:
    """Image formats that the installed Pillow decodes."""
    from PIL import features

    return judge_formats({name for name, codec in FORMATS.items() if features.check(codec)})


def judge_formats(known: set[str]) -> Check:
    """JPEG and PNG are a must."""
    missing = [name for name in FORMATS if name not in known]
    if not missing:
        return Check("image formats", "ok", ", ".join(FORMATS))
    text = f"Pillow cannot decode {', '.join(missing)}. Type: pip install --force-reinstall pillow"
    return Check("image formats", "look" if missing == ["WebP"] else "problem", text)


def is_installed(package: str) -> bool:
    """Whether a distribution is there, without importing it."""
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def judge_extras(asked: Sequence[str], is_there: Callable[[str], bool]) -> Iterator[Check]:
    """Optional parts of clove-ssl, with the command that adds a missing one."""
    for extra, packages in _extras(asked).items():
        missing = [package for package in packages if not is_there(package)]
        text = "installed"
        if missing:
            text = f"optional, not installed. Type: pip install 'clove-ssl[{extra}]'"
        yield Check(f"extra {extra}", "ok", text)


def _extras(asked: Sequence[str]) -> dict[str, list[str]]:
    extras: dict[str, list[str]] = {}
    for line in asked:
        match = re.match(r"([\w.-]+).*;.*extra == ['\"]([\w-]+)['\"]", line)
        if match and match[2] not in NOT_FOR_USERS:
            extras.setdefault(match[2], []).append(match[1])
    return extras


def verdict(checks: list[Check], *, subject: str, healthy: str) -> str:
    """The last line of an examination: that all is well, or what to do first."""
    problems = [check for check in checks if check.state == "problem"]
    looks = sum(check.state == "look" for check in checks)
    if problems:
        count = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
        return f"{subject} has {count}. Begin with {problems[0].name}: {problems[0].text}"
    if looks:
        return f"{subject} {healthy}, with {counted(looks, 'thing')} to look at above."
    return f"{subject} {healthy}."
