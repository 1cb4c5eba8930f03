"""What a shell completes: verbs, recipes, tasks, formats and the options of every verb.

The script holds all words, so that pressing a key starts no program. File names are completed
wherever a word is not an option.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import tyro

from clove_ssl.bench.config import BenchConfig
from clove_ssl.config.finetuning import own_tasks, protocol, task_summaries
from clove_ssl.config.label_curves import LabelsConfig
from clove_ssl.config.predicting import EvaluateConfig, PredictConfig
from clove_ssl.config.probing import EmbedConfig, ProbeConfig
from clove_ssl.config.resuming import ResumeChanges
from clove_ssl.config.showing import PICTURES, DataConfig, ReportConfig, ShowConfig, WatchConfig
from clove_ssl.errors import UserError
from clove_ssl.methods.recipes import all_recipes, recipe
from clove_ssl.study.config import StudyRunConfig
from clove_ssl.study.studies import STUDIES
from clove_ssl.weights.config import ExportConfig, ImportConfig

SHELLS = ("bash", "zsh")
_CLASSES: dict[str, type] = {
    "predict": PredictConfig,
    "evaluate": EvaluateConfig,
    "data": DataConfig,
    "resume": ResumeChanges,
    "probe": ProbeConfig,
    "embed": EmbedConfig,
    "import": ImportConfig,
    "export": ExportConfig,
    "show": ShowConfig,
    "report": ReportConfig,
    "watch": WatchConfig,
    "study": StudyRunConfig,
}
_SHORT = ("--data", "--workers", "--lr", "--config", "--overwrite", "--help", "--help-all")
_OF_ONE_FINETUNING = ("--backbone", "--fraction", "--heads", "--overwrite")  # not of clove labels


def completion_script(args: Sequence[str], verbs: Iterable[str]) -> str:
    """The script for a shell, to be read by it at its start."""
    shell = args[0] if args else ""
    if shell not in SHELLS:
        raise UserError(
            f"--print-completion {shell or 'needs a shell'}; expected bash or zsh. For example: "
            "clove --print-completion bash >> ~/.bashrc"
        )
    names = list(verbs)
    cases = "\n".join(f'    {verb}) words="{" ".join(words_after(verb))}" ;;' for verb in names)
    before = _FOR_ZSH if shell == "zsh" else ""
    return before + _SCRIPT.format(verbs=" ".join(names), cases=cases)


# A fresh ~/.zshrc has not started zsh's own completion, on which that of bash stands.
_FOR_ZSH = """\
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }
autoload -U +X bashcompinit && bashcompinit
"""
_SCRIPT = """\
_clove() {{
  local words current="${{COMP_WORDS[COMP_CWORD]}}"
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{verbs} --version --help" -- "$current"))
    return
  fi
  case "${{COMP_WORDS[1]}}" in
{cases}
  esac
  if [[ "$current" == -* || "$COMP_CWORD" -eq 2 ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$current"))
  fi
}}
complete -o default -F _clove clove"""


def words_after(verb: str) -> list[str]:
    """The names and options that may follow a verb."""
    if verb == "pretrain":
        options = _options(recipe("clove-plus-r18-small", Path()))
        return [*all_recipes(), "--minutes", *_SHORT, *options]
    if verb == "finetune":
        options = _options(protocol("coco-fpn", Path(), "random"))
        return [*task_summaries(), "--steps", *_SHORT, *options]
    if verb == "labels":
        options = _options(protocol("detect", Path(), "random"))
        own = (name for name in _flat_options(LabelsConfig) if name != "--finetuning")
        shared = [name for name in (*_SHORT, *options) if name not in _OF_ONE_FINETUNING]
        return [*own_tasks(), *own, "--steps", *shared]
    if verb == "bench":
        return [*all_recipes(), *task_summaries(), "--help", *_options(BenchConfig())]
    if verb == "list":
        return ["methods", "backbones", "recipes", "tasks", "formats"]
    names: dict[str, Iterable[str]] = {"show": PICTURES, "study": STUDIES}
    first = names.get(verb, ())
    typed = _flat_options(_CLASSES[verb]) if verb in _CLASSES else iter(())
    return [*first, "--help", *typed]


def _flat_options(cls: type) -> Iterator[str]:
    """The options of a config without others inside; what is typed by its place is none."""
    types = get_type_hints(cls, include_extras=True)
    for each in fields(cls):
        if tyro.conf.Positional not in getattr(types[each.name], "__metadata__", ()):
            yield f"--{_dashed(each.name)}"


def _options(config: Any, prefix: str = "") -> Iterator[str]:
    """All options of a config and of those inside it."""
    for each in fields(config):
        value = getattr(config, each.name)
        name = prefix + _dashed(each.name)
        if is_dataclass(value):
            yield from _options(value, f"{name}.")
        else:
            yield f"--{name}"


def _dashed(name: str) -> str:
    return name.replace("_", "-")
