"""Pages that need no network and no other file: how they are made, and how they are written."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from clove_ssl.atomic import cause, replacing
from clove_ssl.errors import UserError, escaped
from clove_ssl.runs.directory import RunDirectory

_FLAG = re.compile(r"--[a-z][a-z._-]*[a-z]")
_COMMAND = re.compile(r"clove [a-z]+ .+?(?=\. |[.,;)]*$|[,;)] )")  # to the end of its sentence
_UNIT = re.compile(r"(?<=\d) (?=%)|(?<=\d) (?=x \d)|(?<=\d x) (?=\d)")


def template(name: str) -> jinja2.Template:
    """A page of this folder; a value that it names and is not given is an error."""
    return _environment().get_template(name)


def get_ready() -> None:
    """Read all pages now, since a run writes its report at the end, hours later.

    By then the installation may have been replaced, or be closed to the user of this process.
    """
    for name in _environment().list_templates(extensions=["jinja"]):
        template(name)


@cache  # it remembers its pages, and reading one takes longer than filling it
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("clove_ssl.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["mark_flags"] = _mark_flags
    environment.filters["mark_commands"] = _mark_commands
    environment.filters["when"] = when
    return environment


def write_page(run: RunDirectory, text: str) -> None:
    """Write the report of a run."""
    remedy = "Free some space or make the run directory writable, then: clove report"
    write_file(run.report, text, remedy=f"{remedy} {run.path}")


def write_file(path: Path, text: str, *, remedy: str = "Give --out another place.") -> None:
    """Write a page; ``remedy`` is what to do when that fails."""
    try:
        with replacing(path) as file:
            file.write(encoded(text))
    except OSError as error:
        raise UserError(f"{path} cannot be written: {cause(error)}. {remedy}") from error


def encoded(text: str) -> bytes:
    """A page as bytes."""
    # A command line may hold a file name that is no text, which UTF-8 refuses to write.
    return escaped(text).encode()


def when(time: str) -> str:
    """A recorded time as a person reads it; provenance.json keeps seconds and zone.

    >>> when("2026-05-04T17:30:59+0200")
    '2026-05-04 17:30'
    """
    return time[:16].replace("T", " ")


def _mark_flags(text: str) -> Markup:
    """Set options of the command line apart, and keep them and numbers with a unit on one line."""
    tied = _UNIT.sub("\N{NO-BREAK SPACE}", text)
    return Markup(_FLAG.sub(r'<code class="flag">\g<0></code>', str(escape(tied))))


def _mark_commands(text: str) -> Markup:
    """Set whole commands apart in a text that says what to type, and other options as well."""
    parts, end = [], 0
    for found in _COMMAND.finditer(text):
        whole = _FLAG.sub(r'<span class="flag">\g<0></span>', str(escape(found.group())))
        parts += [_mark_flags(text[end : found.start()]), Markup(f"<code>{whole}</code>")]
        end = found.end()
    return Markup("").join([*parts, _mark_flags(text[end:])])
