"""Write ``docs/config.md``: every option with its values, its default and its help text.

Run:  python docs/generate_config_page.py
The page is made from the config classes alone, so it cannot say anything else
than ``--help``; ``tests/test_docs.py`` fails when it is out of date.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from clove_ssl.config.finetuning import protocol
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.config.probing import ProbeConfig
from clove_ssl.config.ranges import Rule, rules
from clove_ssl.methods.recipes import all_recipes
from clove_ssl.registry import METHODS, TASKS

PAGE = Path(__file__).with_name("config.md")
NO_RUN = Path("RUN")
INTRODUCTION = """\
# Every option

<!-- Made by docs/generate_config_page.py from the config classes; do not edit. -->

This page lists the options of `clove pretrain`, `clove finetune` and `clove probe`. Besides the
images, the machine and the number of processes, nothing that is not on this page influences a run.

An option has three equivalent spellings: `--method.views.global-size 160` on the command line,
`method: {views: {global_size: 160}}` in a config file, and `ViewsConfig(global_size=160)` in
Python. `None` stands for "not given". `clove pretrain clove-demo --help-all` shows the same list
with the values of that recipe.

A run writes all options, defaults included, to its `config.yaml`, and `--config FILE` reads such a
file; unknown keys in it are errors. If you also name a recipe or a task, the file need only contain
what differs from it. Options on the command line override both. A config file holds plain values
only: tags, dates and duplicate keys are refused, and so are more than 100 aliases, 20 levels or
64 KiB.
"""
SIMPLE_TYPES = {str: "text", Path: "path", bool: "yes or no"}


def render() -> str:
    """The whole page."""
    parts = [INTRODUCTION, "## `clove pretrain`", *_sections(PretrainConfig(out=NO_RUN), prefix="")]
    for name in METHODS.names():
        sections = list(_method_sections(METHODS.load(name)()))
        if sections and name != PretrainConfig(out=NO_RUN).method.name:
            parts += [f"## Other methods: `{name}`", *sections]
    parts += ["## Recipes", _recipes(), "## `clove finetune`", *_finetune()]
    parts += ["## `clove probe`", *_probe()]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _sections(config: Any, *, prefix: str) -> Iterator[str]:
    """One table for a config, then those of the configs inside it."""
    title = prefix.rstrip(".") or "The run as a whole"
    rows = [
        _row(config, each, prefix) for each in fields(config) if not _holds_fields(config, each)
    ]
    if rows:
        yield f"### {f'`{title}`' if prefix else title}"
        yield _plain(type(config).__doc__ or "")
        yield "\n".join(["| option | values | default | meaning |", "|---|---|---|---|", *rows])
    for each in fields(config):
        if _holds_fields(config, each):
            yield from _sections(getattr(config, each.name), prefix=f"{prefix}{each.name}.")


def _method_sections(config: Any) -> Iterator[str]:
    """The tables of a method, but for its views, which have the options of CLoVE's."""
    yield from (
        text for text in _sections(config, prefix="method.") if "`--method.views." not in text
    )


def _holds_fields(config: Any, each: Field[Any]) -> bool:
    return is_dataclass(getattr(config, each.name))


def _row(config: Any, each: Field[Any], prefix: str) -> str:
    kind = get_type_hints(type(config), include_extras=True)[each.name]
    required = each.default is MISSING and each.default_factory is MISSING
    default = "required" if required else f"`{_spelled(getattr(config, each.name))}`"
    meaning = field_docstrings(type(config)).get(each.name, "")
    values = _values(kind, rules(type(config)).get(each.name))
    return f"| {_option(kind, prefix, each.name)} | {values} | {default} | {meaning} |"


def _option(kind: Any, prefix: str, name: str) -> str:
    dashed = (prefix + name).replace("_", "-")
    if kind is bool:
        return f"`--{dashed}`<br>`--{prefix}no-{name}`".replace("_", "-")
    aliases = [
        alias
        for extra in getattr(kind, "__metadata__", ())
        for alias in getattr(extra, "aliases", None) or ()
    ]
    return "<br>".join(f"`{option}`" for option in (*aliases, f"--{dashed}"))


def _values(kind: Any, rule: Rule | None = None) -> str:
    """A type in words, or the rule that numbers of it keep to."""
    if rule is not None:
        return f"{str(rule).removeprefix('a ')}{', or `None`' if rule.optional else ''}"
    if get_origin(kind) is Annotated:
        return _values(get_args(kind)[0])
    if get_origin(kind) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(kind))
    if get_origin(kind) in (UnionType, Union):  # a Literal gives the older kind
        return ", ".join(
            "`None`" if part is type(None) else _values(part) for part in get_args(kind)
        )
    if get_origin(kind) is tuple:
        inner = get_args(kind)
        many = "one or more" if Ellipsis in inner else str(len(inner))
        return f"{many} {_values(inner[0])}s".replace("texts", "words")
    return SIMPLE_TYPES[kind]


def _spelled(value: object) -> str:
    """A value as it is typed on the command line."""
    if isinstance(value, tuple):
        return " ".join(map(_spelled, value)) or "not given"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def field_docstrings(cls: type) -> dict[str, str]:
    """The text under every field of a config class and its bases, on one line."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if is_dataclass(base):
            texts |= _own_docstrings(base)
    return texts


def _own_docstrings(cls: type) -> dict[str, str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(tree, ast.ClassDef)
    texts = {}
    for before, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name):
            match after:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    texts[before.target.id] = _plain(text)
    return texts


def _plain(docstring: str) -> str:
    """A docstring as one line of Markdown that can stand in a table."""
    return " ".join(docstring.split()).replace("``", "`").replace("|", "\\|")


def _recipes() -> str:
    lines = [
        "A recipe is a complete config with a name. It differs from the defaults above, and from",
        "the defaults of its method, in:",
        "",
    ]
    lines += ["| recipe | what it is | differs in |", "|---|---|---|"]
    for name, make in all_recipes().items():
        config = make(NO_RUN)
        mine = dict(_flat(config, prefix=""))
        usual = dict(_flat(PretrainConfig(out=NO_RUN, method=type(config.method)()), prefix=""))
        changed = [f"`--{key} {mine[key]}`" for key in mine if mine[key] != usual[key]]
        first_line = _plain((make.__doc__ or "").splitlines()[0])
        lines.append(f"| `{name}` | {first_line} | {'<br>'.join(changed) or 'nothing'} |")
    return "\n".join(lines)


def _flat(config: Any, *, prefix: str) -> Iterator[tuple[str, str]]:
    """All options of a config with their values."""
    for each in fields(config):
        value = getattr(config, each.name)
        if is_dataclass(value):
            yield from _flat(value, prefix=f"{prefix}{each.name}.")
        else:
            yield f"{prefix}{each.name}".replace("_", "-"), _spelled(value)


def _finetune() -> Iterator[str]:
    yield (
        "The defaults are those of `coco-fpn`; `clove finetune voc-c4 --help-all` shows those of "
        "another task. `solver` is the published schedule; `--steps`, `--batch-size` and "
        "`--lr` change it, and the run reports the change. See [fine-tuning](finetuning.md)."
    )
    yield from _sections(protocol("coco-fpn", NO_RUN, "random"), prefix="")
    config = TASKS.load("voc-semantic")()
    yield from _sections(config, prefix="task.")


def _probe() -> Iterator[str]:
    yield "Backbones are named first, then options: `clove probe RUN random:resnet50 --size 224`."
    *_, table = _sections(ProbeConfig(backbones=()), prefix="")
    yield table.replace("`--backbones`", "`RUN ...`", 1)


if __name__ == "__main__":
    PAGE.write_text(render())
