"""The folder of a run: what lies where, who may write, and how it is found again."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from clove_ssl.atomic import SUFFIX, clear_leftovers
from clove_ssl.config import files
from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.errors import UserError

_UNFINISHED_CONFIG = re.compile(r"config\.yaml\.\d+" + re.escape(SUFFIX))
_OTHER_OWN_NAMES = {".lock", "evaluations", "tensorboard", "wandb"}
_OWN_PATTERN = re.compile(r"run-\d+|config\.yaml\..*|events\.out\.tfevents\..*")
_CHECKPOINT = re.compile(r"step-(\d+)(-kept)?\.pt")


class _Place:
    """A file or folder of a run: an attribute that gives its path."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, run: RunDirectory, _: type) -> Path:
        return run.path / self.name


@dataclass(frozen=True)
class RunDirectory:
    """Names of everything a run writes."""

    path: Path

    config = _Place("config.yaml")
    provenance = _Place("provenance.json")
    metrics = _Place("metrics.jsonl")
    log = _Place("log.txt")
    checkpoints = _Place("checkpoints")
    backbone = _Place("export/backbone.safetensors")
    best_backbone = _Place("export/best_backbone.safetensors")
    model = _Place("export/model.safetensors")  # the whole fine-tuned one, heads included
    model_card = _Place("export/model_card.md")
    report = _Place("report.html")
    probes = _Place("probes.json")
    self_check = _Place("self_check.json")
    scenes = _Place("scenes")
    predictions = _Place("predictions")
    scores = _Place("scores.json")
    summary = _Place("summary.json")
    pictures = _Place("pictures")

    def evaluation(self, step: int) -> RunDirectory:
        """Predictions and scores of an evaluation on the way."""
        return RunDirectory(self.path / "evaluations" / f"iteration-{step:09d}")

    def repetition(self, number: int) -> RunDirectory:
        """One of several runs that differ in their seed alone."""
        return RunDirectory(self.path / f"run-{number}")


def begin(config: PretrainConfig | FinetuneConfig, *, overwrite: bool) -> RunDirectory:
    """Make the folder of a new run, with its config in it."""
    _make_free(config.out, overwrite=overwrite)
    run = create(config.out)
    files.save(config, run.config)
    return run


def create(path: Path) -> RunDirectory:
    """Make the folder of a new run; refuse one that holds anything."""
    check_is_new(path)
    return make(path)


def check_is_new(path: Path) -> None:
    """Refuse a folder that holds anything."""
    if path.is_file():
        raise UserError(f"{path} is a file. Give a new folder, for example --out {path}-run.")
    if path.is_dir() and not all(map(_is_left_by_a_kill, path.iterdir())):
        goes_on = f", or continue that run: clove resume {path}; --overwrite replaces it"
        raise UserError(
            f"{path} is not empty, and a new run would overwrite what is there. Choose another "
            f"folder, for example --out {path}-2"
            f"{goes_on if RunDirectory(path).config.is_file() else ''}."
        )


def check_is_free(path: Path, *, overwrite: bool) -> None:
    """Refuse a folder that holds anything, or anything but a run that may be overwritten."""
    if not overwrite or not path.is_dir() or not any(path.iterdir()):
        check_is_new(path)
        return
    if not RunDirectory(path).config.is_file():
        raise UserError(
            f"{path} is not empty and is no run, so --overwrite leaves it alone. Choose another "
            f"folder, for example --out {path}-2."
        )
    foreign = sorted(entry.name for entry in path.iterdir() if not _is_of_a_run(entry.name))
    if foreign:
        raise UserError(
            f"{path} is a run, but also holds {', '.join(foreign[:5])}, which no run writes, so "
            "--overwrite leaves it alone. Move that away, or choose another --out."
        )
    with locked(RunDirectory(path)):  # refuses a run that is going
        pass


def _make_free(path: Path, *, overwrite: bool) -> None:
    """Remove the earlier run that a new one may overwrite."""
    if not overwrite or not path.is_dir():
        return
    check_is_free(path, overwrite=True)
    for entry in path.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _is_of_a_run(name: str) -> bool:
    """Whether a run, or a command that was given one, writes something of this name."""
    places = (each for each in vars(RunDirectory).values() if isinstance(each, _Place))
    own = {place.name.partition("/")[0] for place in places}
    return name in own | _OTHER_OWN_NAMES or _OWN_PATTERN.fullmatch(name) is not None


def _is_left_by_a_kill(entry: Path) -> bool:
    """Whether this is all that a run has that was killed before its config was complete."""
    if _UNFINISHED_CONFIG.fullmatch(entry.name):
        return entry.is_file() and not entry.is_symlink()
    is_own = entry.name in ("checkpoints", "export") and entry.is_dir() and not entry.is_symlink()
    return is_own and not any(entry.iterdir())


def make(path: Path) -> RunDirectory:
    """The folder with its empty sub-folders."""
    run = RunDirectory(path)
    try:
        for left in path.glob("config.yaml.*"):
            if _UNFINISHED_CONFIG.fullmatch(left.name):
                left.unlink(missing_ok=True)
        run.checkpoints.mkdir(parents=True, exist_ok=True)
        run.backbone.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{path} cannot be created: {error.strerror}. Give --out a folder you may write to."
        ) from None
    return run


def find(path: Path) -> RunDirectory:
    """The folder of an earlier run; say what is missing when it is none."""
    run = RunDirectory(path)
    if not path.is_dir():
        state = "is a file, not the folder of a run" if path.exists() else "does not exist"
        raise UserError(f"{path} {state}. Give the --out folder of an earlier run.")
    if not run.config.is_file():
        raise UserError(
            f"{path} has no config.yaml, so it is not a run. Give the --out folder of an earlier "
            "run, or start one: clove pretrain --data PHOTOS --out RUN"
        )
    return run


def read_config(run: RunDirectory) -> PretrainConfig | FinetuneConfig:
    """The config of a run; its class says whether the run is a pre-training or a fine-tuning."""
    values = files.read_values(run.config)
    if "task" in values:
        return files.from_values(FinetuneConfig, values, where=run.config)
    return files.from_values(PretrainConfig, values, where=run.config)


def read_finetuning(run: RunDirectory) -> FinetuneConfig:
    """The config of a fine-tuning run; say what a pre-training run is good for instead."""
    config = read_config(run)
    if isinstance(config, FinetuneConfig):
        return config
    raise UserError(
        f"{run.path} is a pre-training run: it has a backbone, but nothing that predicts or could "
        f"be scored. Fine-tune it first: clove finetune detect --backbone {run.path} --data DATA "
        f"--out {run.path}-finetuned; its features are measured by: clove probe {run.path}"
    )


def not_exported(run: RunDirectory, file: Path) -> UserError:
    """Say where to find a file that a fine-tuning run has not written, or not here."""
    first = run.repetition(0)
    remedy = (
        f"Give one of its runs, such as {first.path}."
        if first.path.is_dir()
        else f"Give a finished run of clove finetune; to finish one, type: clove resume {run.path}"
    )
    return UserError(f"{run.path} holds no {file.relative_to(run.path)}. {remedy}")


@dataclass(frozen=True)
class Checkpoint:
    """A file of a run from which it can go on."""

    path: Path
    step: int
    milestone: bool

    @property
    def checksum(self) -> Path:
        return self.path.with_suffix(".sha256")

    def is_intact(self) -> bool:
        """Whether the file is what was written."""
        if not (self.checksum.is_file() and self.path.is_file()):  # and not pipes, which wait
            return False
        with self.path.open("rb") as file, self.checksum.open("rb") as known:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return digest.encode() == known.read(100).strip()


def list_checkpoints(folder: Path) -> list[Checkpoint]:
    """Complete checkpoints, newest first."""
    try:
        names = os.listdir(folder)  # not glob: to it, a folder that may not be listed is empty
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = [(name, _CHECKPOINT.fullmatch(name)) for name in names]
    checkpoints = [Checkpoint(folder / n, int(m[1]), m[2] is not None) for n, m in found if m]
    return sorted(checkpoints, key=lambda checkpoint: checkpoint.step, reverse=True)


def newest_intact(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that is what was written, if there is one."""
    return next((each for each in list_checkpoints(folder) if each.is_intact()), None)


@contextmanager
def locked(run: RunDirectory) -> Iterator[bool]:
    """Hold the run for this process; the lock goes with the process, however it ends.

    Gives whether the run is protected, which it is not on file systems without locks.
    """
    lock = run.path / ".lock"
    with ExitStack() as stack:
        try:
            hold = stack.enter_context(held(lock))
        except BlockingIOError:
            owner = lock.read_text(errors="replace").strip() or "another process"
            raise UserError(
                f"{run.path} is in use by a running process ({owner}). Wait for it, stop it, or "
                "choose another --out."
            ) from None
        os.ftruncate(hold.handle, 0)
        os.pwrite(hold.handle, f"pid {os.getpid()}\n".encode(), 0)
        clear_leftovers(run.path)
        yield hold.protects


@dataclass(frozen=True)
class Hold:
    """A file that this process holds."""

    handle: int
    protects: bool  # not so on file systems without locks


@contextmanager
def held(lock: Path) -> Iterator[Hold]:
    """Hold a file that no other process holds, or raise ``BlockingIOError``."""
    handle = _open_lock(lock)
    _held.add(handle)
    try:
        yield Hold(handle, _take(handle, lock))
    finally:
        if handle in _held:  # and not in a child, which has let go of it
            _held.remove(handle)
            os.close(handle)


def _open_lock(lock: Path) -> int:
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o644)
    except FileNotFoundError:
        raise _no_lock(lock, "it is a link that leads nowhere") from None
    except OSError as error:
        raise _no_lock(lock, error.strerror) from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise _no_lock(lock, "it is not a regular file")
    return handle


def _take(handle: int, lock: Path) -> bool:
    """Lock an open file; whether the file system can."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno in _WITHOUT_LOCKS:
            return False
        raise _no_lock(lock, error.strerror) from None
    return True


_WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


def _no_lock(lock: Path, reason: str | None) -> UserError:
    return UserError(
        f"{lock} cannot be locked: {reason}. Remove it if no process uses this folder, or give "
        "--out a folder that you may write to."
    )


_held: set[int] = set()
"""Locks of this process."""


def _let_go() -> None:
    """In a child: a worker that outlives its parent for a while must not hold its run."""
    for handle in _held:
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)
