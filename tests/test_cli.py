"""The command line: helpful, quick, and never a traceback on a user's mistake."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clove_ssl import cli
from clove_ssl.config import files
from clove_ssl.config.finetuning import protocol
from clove_ssl.methods.recipes import all_recipes, recipe

WITHOUT_TORCH = """
import contextlib, io, sys
from clove_ssl import cli
others = [["--help"], [], ["list", "recipes"], ["list", "methods"], ["--version"]]
others += [["pretrain", "clove-demo", "--help"], ["--print-completion", "zsh"]]
for arguments in [*others, *([verb, "--help"] for verb in cli.VERBS)]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            code = cli.main(arguments)
        except SystemExit as stop:
            code = stop.code
    assert not code, (arguments, code)
    assert "clove" in said.getvalue(), arguments
    assert "torch" not in sys.modules, f"{arguments} imported torch"
import clove_ssl
for name in ("pretrain", "probe", "export", "report", "show"):
    assert callable(getattr(clove_ssl, name))
    assert "torch" not in sys.modules, f"{name} imported torch"
"""


def test_help_imports_no_torch() -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH]  # one process, since starting it takes longest
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pretrian"], "Did you mean 'pretrain'?"),
        (["pretrain", "clove-r50", "--out", "x"], "Unknown recipe 'clove-r50'"),
        (["pretrain", "moco", "--out", "x"], "Did you mean 'moco-r"),
        (["pretrain", "--method", "moco", "--out", "x"], "Type: clove pretrain moco-r"),
        (
            ["pretrain", "clove-demo", "--out", "x", "--weight-decay=0.1"],
            "Type: --optimizer.weight",
        ),
        (["pretrain", "clove-demo", "--config"], "--config needs a file"),
        (["pretrain", "--config"], "--config needs a file"),
        (["pretrain", "--config", "none.yaml", "--out", "x"], "none.yaml does not exist"),
        (["pretrain", "clove-demo"], "--out"),
        (["pretrain", "clove-demo", "--out", "x", "--epocs", "3"], "--epocs"),
        (["pretrain", "clove-demo", "--out", "x", "--epochs", "many"], "many"),
        (
            ["pretrain", "clove-demo", "--out", "x", "--batch-size", "0"],
            "--batch-size is 0; expected a whole number from 1",
        ),
        (["pretrain", "clove-demo", "--out", "x", "--data", "nowhere"], "nowhere"),
        (["pretrain", "clove-demo", "--out", "x", "--precision", "bf16"], "needs a GPU"),
        (["pretrain", "clove-demo", "--out", "x", "--backbone.name", "resnet5"], "resnet5"),
        (["pretrain", "clove-demo", "--out", "x", "--method.attention.heads", "7"], "heads=7"),
        (["resume", "nowhere"], "nowhere does not exist"),
        (["resume", "x" * 5000], "Give a shorter path"),
        (["pretrain", "--config", ".", "--out", "x"], ". cannot be read: Is a directory"),
        (["bench", "clove-demo", "--data", "nowhere"], "nowhere"),
        (["bench", "voc-c5"], "Unknown recipe or task 'voc-c5'. Did you mean 'voc-c4'?"),
        (["bench", "voc-c4", "--data", "nowhere"], "nowhere does not exist"),
        (["bench", "voc-c4", "--out", "/proc/none/x"], "/proc/none/x cannot be written"),
        (["bench", "detect"], "has no built-in scenes"),
        (["bench", "clove-demo", "--out", "/proc/none/x"], "/proc/none/x cannot be written"),
        (["resume"], "required"),
        (["list", "recipies"], "recipes"),
        (["report", "nowhere"], "nowhere does not exist"),
        (["probe", "nowhere"], "nowhere"),
        (["doctor", "nowhere"], "nowhere does not exist"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_gives_exit_code_2_and_one_message(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        code: object = cli.main(arguments)
    except SystemExit as stop:  # tyro explains malformed options itself
        code = stop.code
    written = capsys.readouterr()
    assert code == 2
    assert message in " ".join((written.err + written.out).split())
    assert "Traceback" not in written.err


def test_every_recipe_is_listed_with_its_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "recipes"]) == 0
    output = capsys.readouterr().out
    for name, make in all_recipes().items():
        assert name in output
        assert (make.__doc__ or "").splitlines()[0] in output


def test_methods_and_backbones_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "methods"]) == 0
    assert cli.main(["list", "backbones"]) == 0
    output = capsys.readouterr().out
    for name in ("clove", "resnet50", "wide_resnet50_2", "convnext_tiny", "regnet_y_400mf"):
        assert name in output


def test_a_failed_start_leaves_no_folder_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["pretrain", "clove-demo", "--out", "run", "--data", "nowhere"]) == 2
    assert cli.main(["pretrain", "clove-demo", "--out", "run", "--batch-size", "0"]) == 2
    assert not (tmp_path / "run").exists()


def test_an_out_that_is_taken_is_refused_before_the_data_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/notes.txt").write_text("mine")
    images = ["--data", "nowhere", "--out", "run"]
    assert cli.main(["pretrain", "clove-demo", *images]) == 2
    assert cli.main(["finetune", "voc-c4", "--backbone", "nothing", *images]) == 2
    assert capsys.readouterr().err.count("run is not empty") == 2


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Configs of the runs that would have started."""
    configs: list[Any] = []

    def start(config: Any, *, overwrite: bool) -> None:
        configs.append(config)

    monkeypatch.setattr("clove_ssl.whole_runs.begin", start)
    monkeypatch.setattr("clove_ssl.finetuning.seeds.finetune", start)
    return configs


def test_a_file_changes_a_recipe_and_options_change_both(
    tmp_path: Path, started: list[Any]
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("batch_size: 8\nepochs: 3\nmethod: {loss: {margin: 50}}\nout: elsewhere\n")
    arguments = ["--config", str(file), "--out", str(tmp_path / "run"), "--epochs", "5"]
    assert cli.main(["pretrain", "clove-demo", *arguments]) == 0
    (config,) = started
    demo: Any = recipe("clove-demo", tmp_path / "run")
    assert config.method.loss == replace(demo.method.loss, margin=50)
    unchanged = replace(config, method=demo.method, batch_size=demo.batch_size, epochs=demo.epochs)
    assert (config.batch_size, config.epochs) == (8, 5)
    assert unchanged == demo


def test_a_file_changes_a_protocol(tmp_path: Path, started: list[Any]) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("iterations: 7\nbackbone: runs/a\n")
    out = ["--out", str(tmp_path / "run")]
    assert cli.main(["finetune", "voc-c4", "--config", str(file), *out]) == 0
    file.write_text("iterations: 7\n")
    more = ["--backbone", "runs/b"]
    assert cli.main(["finetune", "voc-c4", "--config", str(file), *more, *out]) == 0
    expected = protocol("voc-c4", tmp_path / "run", "runs/a")
    assert started[0] == replace(expected, iterations=7)
    assert started[1] == replace(started[0], backbone="runs/b")
    with pytest.raises(SystemExit):
        cli.main(["finetune", "voc-c4", "--config", str(file), *out])


@pytest.mark.parametrize("named", ["moco-r18-small", "voc-c4"])
def test_a_recipe_beside_a_file_that_leaves_nothing_of_it_is_refused(
    named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, is_task = tmp_path / "config.yaml", named == "voc-c4"
    whole: Any = protocol("coco-fpn", tmp_path, "x") if is_task else recipe("clove-demo", tmp_path)
    files.save(whole, file)
    verb = "finetune" if is_task else "pretrain"
    assert cli.main([verb, named, "--config", str(file), "--out", str(tmp_path / "run")]) == 2
    assert f"nothing of {named} would be left" in capsys.readouterr().err


def test_a_mistake_in_a_file_that_changes_a_recipe_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("epocs: 3\n")
    assert cli.main(["pretrain", "clove-demo", "--config", str(file), "--out", "x"]) == 2
    told = capsys.readouterr().err
    assert "mine.yaml" in told
    assert "epocs" in told


def failing(number: int) -> Callable[[Sequence[str]], None]:
    def fail(arguments: Sequence[str]) -> None:
        raise OSError(number, os.strerror(number), "runs/a/log.txt")

    return fail


@pytest.mark.parametrize(
    ("number", "code", "message"), [(errno.ENOSPC, 2, "free some space"), (errno.EPIPE, 141, "")]
)
def test_a_refusal_of_the_machine_is_no_traceback(
    number: int,
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(cli.VERBS, "doctor", failing(number))
    assert cli.main(["doctor"]) == code
    assert message in capfd.readouterr().err


def test_what_no_user_can_mend_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.VERBS, "doctor", failing(errno.EDOM))
    with pytest.raises(OSError, match="argument out of domain"):
        cli.main(["doctor"])


def test_output_that_nobody_wants_any_more_ends_quietly() -> None:
    script = f"{sys.executable} -m clove_ssl list recipes | true"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr == ""


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_the_caller_has_closed_are_no_error(closed: str, tmp_path: Path) -> None:
    written = tmp_path / "open.txt"
    look = (
        "import os, sys; sys.argv = ['clove', 'list', 'methods']; "
        "from clove_ssl.__main__ import entry\n"
        "try: entry()\n"
        "except SystemExit as end: code = end.code\n"
        f"open({str(written)!r}, 'w').write(f'{{code}} ' + "
        "' '.join(os.readlink(f'/proc/self/fd/{n}') for n in range(3)))"
    )
    script = f'exec "$0" -c "$1" {closed}'
    command = ["bash", "-c", script, sys.executable, look]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    code, *streams = written.read_text().split()
    assert code in ("0", "None")
    assert streams.count(os.devnull) >= closed.count("&-")


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["list", "methods"]])
def test_a_full_disk_behind_the_output_is_no_traceback(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    full = io.StringIO()
    monkeypatch.setattr(full, "write", fail)
    monkeypatch.setattr("sys.stdout", full)
    assert cli.main(words) == 2
    assert "The disk is full" in capsys.readouterr().err


def test_a_reader_that_has_enough_of_the_help_is_no_traceback() -> None:
    command = f"{sys.executable} -m clove_ssl --help | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_a_folder_that_was_removed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert cli.main(["list", "methods"]) == 2
    assert "Go to another one: cd ~" in capsys.readouterr().err


def test_help_comes_to_an_end_on_two_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "2")
    with pytest.raises(SystemExit):
        cli.main(["score", "--help"])
    assert "usage" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "ulimit -v"),
        (ImportError("libtorch.so: failed to map segment from shared object"), "ulimit -v"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "ulimit -v"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "nvidia-smi"),
    ],
)
def test_too_little_memory_is_told(
    error: Exception,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(args: cli.Arguments) -> None:
        raise error

    monkeypatch.setitem(cli.VERBS, "list", fail)
    assert cli.main(["list"]) == 2
    assert words in capsys.readouterr().err


def test_other_faults_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(args: cli.Arguments) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setitem(cli.VERBS, "list", fail)
    with pytest.raises(RuntimeError, match="of ours"):
        cli.main(["list"])


@pytest.mark.parametrize(
    "words", [["predict", "run", "", "--out", "x"], ["data", ""], ["data", "x", "--out="]]
)
def test_a_word_that_is_empty_does_not_mean_this_folder(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    assert "perhaps a variable that is not set" in capsys.readouterr().err


def test_help_and_version_are_given_without_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["help"]) == cli.main(["version"]) == 0
    assert "Begin with: clove pretrain" in capsys.readouterr().out


def test_a_zero_byte_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pretrain", "clove-demo", "--out", "a\0b"]) == 2
    assert "holds a zero byte" in capsys.readouterr().err
