"""Short help that is true, words before the options, and what a shell completes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from clove_ssl import cli
from clove_ssl.command_line.arguments import with_all_data
from clove_ssl.command_line.completion import words_after
from clove_ssl.command_line.usage import FINETUNE_OPTIONS, LABELS_OPTIONS, PRETRAIN_OPTIONS
from clove_ssl.methods.recipes import all_recipes

BEFORE_THE_CONFIG = {"--minutes", "--config", "--overwrite"}


def test_the_list_of_verbs_fits_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80
    assert set(cli.VERBS) <= {line.split()[0] for line in lines if line}


@pytest.mark.parametrize("verb", ["pretrain", "finetune", "labels"])
def test_help_fits_two_screens(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([verb, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 56  # twice 28
    assert max(map(len, lines)) <= 80
    if verb == "pretrain":
        named = set(re.findall(r"[\w-]+", " ".join(lines)))
        assert set(all_recipes()) <= named


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["pretrain", "clove-demo"], PRETRAIN_OPTIONS),
        (["finetune", "voc-c4"], FINETUNE_OPTIONS),
        (["labels", "detect"], LABELS_OPTIONS),
    ],
)
def test_every_option_of_the_short_help_exists(
    words: list[str], options: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main([*words, "--help-all"])
    everything = set(re.findall(r"--[\w.-]+", capsys.readouterr().out))
    named = {word for each in options for word in re.findall(r"--[\w.-]+", each)}
    assert named - BEFORE_THE_CONFIG <= everything


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("x --data a b --out r", "x --out r --data a --data.more b"),
        ("--data a --out r --data=b", "--out r --data a --data.more b"),
        ("x --data a --out r", "x --out r --data a"),
        ("x --out r", "x --out r"),
        ("x --data", "x --data"),
    ],
)
def test_several_sources_are_one(typed: str, meant: str) -> None:
    assert with_all_data(typed.split()) == meant.split()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("finetune voc-c4 --backbone random --data a --data b --out r", "--data is given 2 times"),
        ("probe x --data a --data b", "--data is given 2 times"),
        ("pretrain clove-demo --out r --minutes soon", "--minutes is soon"),
        ("pretrain --data p --out r --minutes 3 --epochs 2", "both say how long"),
        ("--print-completion fish", "expected bash or zsh"),
        ("resume r --epochs 2 --steps 3", "both say how long"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments.split()) == 2
    assert message in capsys.readouterr().err


def test_bash_completes_verbs_recipes_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--print-completion", "bash"]) == 0
    script = (
        capsys.readouterr().out
        + """
complete_words() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _clove; echo "${COMPREPLY[@]}"; }
complete_words clove pret
complete_words clove pretrain clove-de
complete_words clove finetune voc-c4 --evaluation.e
complete_words clove resume runs/a --ep
"""
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["pretrain", "clove-demo", "--evaluation.every", "--epochs"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh_completes_without_any_set_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["--print-completion", "zsh"]) == 0
    script = capsys.readouterr().out + "\nprint -- $_comps[clove]"
    done = subprocess.run(
        ["zsh", "-f", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "HOME": str(tmp_path), "ZDOTDIR": str(tmp_path)},
    )
    assert done.stderr == ""
    assert "_clove" in done.stdout


def test_zsh_starts_its_own_completion_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--print-completion", "zsh"]) == 0
    first = capsys.readouterr().out.splitlines()[:2]
    assert "compdef" in first[0]
    assert "compinit" in first[0]
    assert "bashcompinit" in first[1]


def test_labels_completes_no_option_of_a_single_finetuning() -> None:
    words = set(words_after("labels"))
    assert {"--backbones", "--fractions", "--epochs"} <= words
    assert not {"--backbone", "--fraction", "--heads", "--finetuning"} & words


def test_every_verb_has_words() -> None:
    assert all(words_after(verb) for verb in cli.VERBS)
    assert "smoke" in words_after("study")
    assert "features" in words_after("show")


@pytest.mark.parametrize("verb", sorted(set(cli.VERBS) - {"list", "score", "doctor"}))
def test_every_completed_option_exists(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = {"pretrain": "clove-plus-r18-small", "finetune": "voc-c4", "labels": "detect"}
    asked = [names[verb], "--help-all"] if verb in names else ["--help"]
    with pytest.raises(SystemExit):
        cli.main([verb, *asked])
    there = set(re.findall(r"--[\w.-]+", capsys.readouterr().out))
    named = {word for word in words_after(verb) if word.startswith("-")}
    before = {"--help-all", "--config"} if verb in names else set()
    before |= {"pretrain": {"--minutes", "--overwrite"}, "finetune": {"--overwrite"}}.get(
        verb, set()
    )
    assert len(named) > 1
    assert named - before <= there


def test_all_kinds_are_listed_and_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    assert cli.main(["--version"]) == 0
    said = capsys.readouterr().out
    for words in ("methods:", "backbones:", "recipes:", "tasks:", "formats:", "clove 0."):
        assert words in said
