"""Read JSON files as values of one type, strictly.

A file of a run directory may be damaged, or somebody else's: whoever reads one says which type
its content has, and either gets just that or a ``UserError`` that names the file and the value.
Types are those of ``typing``: tables with known keys are ``TypedDict``; keys that a type does not
name are kept as they are, because later versions may write more.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from shlex import quote
from typing import Any

import cattrs

from clove_ssl.config.regular_files import read_regular
from clove_ssl.errors import UserError

LARGEST = 2**28  # bytes; predictions and labels, which may be larger, have readers of their own


class BadJson(ValueError):
    """What is wrong with the content of a file, in words."""


def read_json(path: Path, kind: Any, *, remedy: str, otherwise: str = "damaged") -> Any:
    """The content of a JSON file, which has the type ``kind``.

    Args:
        path: The file.
        kind: What its content must be, such as ``dict[str, float]``.
        remedy: What to do about a file that is damaged: the end of the message.
        otherwise: What a file is called whose content has another type.
    """
    try:
        return checked(_parsed(_text(path)), kind)
    except PermissionError:  # no remedy for damage helps, a new file would have the same mode
        raise UserError(
            f"{path} cannot be read: you may not. Allow it, and its folder, then try again: "
            f"chmod u+rw {quote(str(path))}"
        ) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}. {remedy}") from None
    except ValueError as error:
        raise UserError(f"{path} is {otherwise}: {error}. {remedy}") from None


def checked(content: Any, kind: Any) -> Any:
    """Content that was read already, if it has the type ``kind``; else ``BadJson``."""
    try:
        return _converter().structure(content, kind)
    except (cattrs.BaseValidationError, BadJson) as error:
        raise BadJson(_first_problem(error)) from None
    except (TypeError, ValueError, AttributeError):  # no table or list where there should be one
        raise BadJson("it does not hold what was written") from None


def _text(path: Path) -> str:
    content = read_regular(path, most=LARGEST)
    if len(content) > LARGEST:
        raise BadJson(f"it has more than {LARGEST:,} bytes")
    return content.decode("utf-8")


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise BadJson("it is nested too deeply") from None


def _first_problem(error: BaseException) -> str:
    problems = cattrs.transform_error(error, path="it", format_exception=_format)
    return problems[0].replace(" @ it.", " at ").replace(" @ it", "")


def _format(error: BaseException, expected: type | None) -> str:
    if isinstance(error, BadJson):
        return str(error)
    if isinstance(error, KeyError):
        return f"{error} is missing"
    return "a value of another kind was expected"


@cache  # making one takes longer than what it does for a file
def _converter() -> cattrs.Converter:
    converter = cattrs.Converter()
    for kind in (bool, int, float, str):
        converter.register_structure_hook(kind, _scalar)
    converter.register_structure_hook_func(lambda kind: kind is Any, lambda value, _: value)
    for collection, name in ((dict, "a table"), (list, "a list")):
        _require(converter, collection, name)
    return converter


def _require(converter: cattrs.Converter, collection: Any, name: str) -> None:
    """Take only a real list for a list; cattrs would take any text for one."""

    def is_one(kind: Any) -> bool:
        return kind is collection or getattr(kind, "__origin__", None) is collection

    def factory(kind: Any) -> Any:
        *_, inner = getattr(kind, "__args__", (Any,))  # of the values; keys are always texts

        def structure(value: Any, _: Any) -> Any:
            if not isinstance(value, collection):
                raise BadJson(f"{_shown(value)} is not {name}")
            if isinstance(value, list):
                return [converter.structure(each, inner) for each in value]
            return {key: converter.structure(value[key], inner) for key in value}

        return structure

    converter.register_structure_hook_factory(is_one, factory)


def _scalar(value: Any, kind: type[Any]) -> Any:
    """A value of just this type; a whole number may stand for any number."""
    if kind is float and type(value) is int:
        value = float(value) if abs(value) < 2**63 else value
    if type(value) is not kind or (kind is int and abs(value) >= 2**63):
        raise BadJson(f"{_shown(value)} is not {_NAMES[kind]}")
    return value


def _shown(value: Any) -> str:
    return f"{value!r:.40}"


_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
