"""What ``clove list`` shows."""

from __future__ import annotations

from collections.abc import Iterator

from clove_ssl.config.bases import MethodConfig
from clove_ssl.config.finetuning import task_summaries
from clove_ssl.methods.recipes import all_recipes
from clove_ssl.registry import METHODS
from clove_ssl.text_tables import in_columns
from clove_ssl.weights.config import FORMATS

KINDS = ("methods", "backbones", "recipes", "tasks", "formats")
_HEADINGS = ("name", "paper", "kind", "teacher", "queues", "status")


def describe_all() -> Iterator[str]:
    """All kinds of names, each below its heading."""
    for number, kind in enumerate(KINDS):
        if number:
            yield ""
        yield f"{kind}:"
        yield from (f"  {line}" for line in describe(kind))


def describe(what: str) -> Iterator[str]:
    """One line per known name of a kind."""
    if what == "recipes":
        yield from (f"{name:<26} {_first_line(make)}" for name, make in all_recipes().items())
    elif what == "methods":
        yield from in_columns(
            [_HEADINGS, *(_method_row(*each) for each in METHODS.load_all().items())]
        )
    elif what == "formats":
        yield from (f"{name:<13} {summary}" for name, summary in FORMATS.items())
    elif what == "tasks":
        yield from (f"{name:<15} {summary}" for name, summary in task_summaries().items())
    else:
        from clove_ssl.backbones.build import backbone_names

        yield from backbone_names()
        yield "timm:NAME (any timm network with feature maps; needs the extra `timm`)"


def _method_row(name: str, method: type[MethodConfig]) -> tuple[str, ...]:
    return (
        name,
        method.paper or "-",
        " + ".join(method.kinds) or "-",
        "yes" if method().has_teacher else "-",
        str(method.queues or "-"),
        method.status,
    )


def _first_line(described: object) -> str:
    return (described.__doc__ or "").strip().splitlines()[0]
