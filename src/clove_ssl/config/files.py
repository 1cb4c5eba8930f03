"""Read and write configs as YAML, strictly.

The file a run writes to ``config.yaml`` is the file ``--config`` reads, so a
run can always be repeated from its own directory. Unknown keys are errors.
"""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import cattrs
import yaml
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn
from cattrs.preconf.pyyaml import make_converter
from cattrs.v import format_exception

from clove_ssl.atomic import write_text
from clove_ssl.config.bases import MethodConfig, TaskConfig
from clove_ssl.config.plain_yaml import LARGEST, parse_yaml
from clove_ssl.config.regular_files import read_regular
from clove_ssl.errors import UserError
from clove_ssl.registry import METHODS, TASKS, Registry

T = TypeVar("T")

Named = MethodConfig | TaskConfig
"""Configs whose class is found by the name in the file."""
_NAMED = ("method", "task")
"""Where they stand in others."""


def save(config: object, path: Path) -> None:
    """Write every field, defaults included: the file must survive new defaults."""
    write_text(path, to_yaml(config))


def to_yaml(config: object) -> str:
    """The config as the text of a config file."""
    return yaml.safe_dump(_converter().unstructure(config), sort_keys=False)


def values_of(config: object) -> dict[str, Any]:
    """The config as plain values, as they stand in a config file."""
    return _values(to_yaml(config), where=type(config).__name__)


def fingerprint(config: object) -> str:
    """A short hash that two configs share when they differ in nothing but ``out``."""
    fields = {k: v for k, v in _converter().unstructure(config).items() if k != "out"}
    return hashlib.sha256(yaml.safe_dump(fields).encode()).hexdigest()[:12]


def load(cls: type[T], path: Path, *, overrides: Mapping[str, Any] | None = None) -> T:
    """Read a config of type ``cls``; name the file and the key when it does not fit."""
    return from_values(cls, {**read_values(path), **(overrides or {})}, where=path)


def parse(cls: type[T], text: str, *, where: Path) -> T:
    """The config that is written in ``text``, which comes from the file ``where``."""
    return from_values(cls, _values(text, where=where), where=where)


def read_values(path: Path) -> dict[str, Any]:
    """The values of a YAML file, which must be a mapping from names."""
    # In UTF-8 a character has four bytes at most; fewer could hide that the end is missing.
    most = 4 * LARGEST
    try:
        content = read_regular(path, most=most)
        # Of what is longer the end is missing, perhaps within a character.
        text, _ = codecs.utf_8_decode(content, "strict", len(content) <= most)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist. Give the config.yaml of a run.") from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror}. Give a config file, such as the config.yaml "
            "of a run."
        ) from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not a YAML file: {error}") from None
    return _values(text, where=path)


def _values(text: str, *, where: Path | str) -> dict[str, Any]:
    values = parse_yaml(text, where=where)
    if values is None:  # a copy that failed; all defaults would be another run
        raise UserError(f"{where} is empty. Expected lines like `epochs: 200`; copy it again.")
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise UserError(f"{where} is not a config: expected lines like `epochs: 200`.")
    return values


def from_values(cls: type[T], values: dict[str, Any], *, where: Path) -> T:
    """The config of type ``cls`` with the values that :func:`read_values` found in a file."""
    try:
        return _converter().structure(_translated(values), cls)
    except (TypeError, AttributeError):
        raise UserError(f"{where} is not a config: expected lines like `epochs: 200`.") from None
    except cattrs.BaseValidationError as error:
        raise _explain(error, cls, where) from None


def changed(config: T, changes: Mapping[str, Any], *, where: str) -> T:
    """The config with some values replaced, nested as in a file; ``where`` names their origin."""
    try:
        values = _merged(_converter().unstructure(config), _translated(dict(changes)))
        return _converter().structure(values, type(config))
    except cattrs.BaseValidationError as error:
        raise _explain(error, type(config), where) from None


def _translated(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a file in today's words: runs once only said whether they compile."""
    old = values.get("compile")
    if not isinstance(old, bool):
        return values
    return {**values, "compile": "always" if old else "never"}


def _merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(values)
    for key, change in changes.items():
        known = result.get(key)
        if isinstance(known, dict) and isinstance(change, Mapping):
            # Another method or task has other fields, so nothing of the old one is kept.
            is_other = key in _NAMED and change.get("name", known["name"]) != known["name"]
            change = _merged({} if is_other else known, change)
        result[key] = change
    return result


def _explain(error: cattrs.BaseValidationError, cls: type, where: Path | str) -> UserError:
    problems = cattrs.transform_error(error, path="config", format_exception=_format)
    return UserError(f"{where} is not a valid {cls.__name__}:\n  " + "\n  ".join(problems))


def _format(error: BaseException, expected: type | None) -> str:
    if isinstance(error, cattrs.ForbiddenExtraKeysError):  # in a file a name can be a number, too
        return f"extra fields found ({', '.join(map(str, error.extra_fields))})"
    return str(error) if isinstance(error, UserError) else format_exception(error, expected)


@cache  # making one takes longer than all it does for a config
def _converter() -> cattrs.Converter:
    converter = make_converter(forbid_extra_keys=True)
    converter.register_unstructure_hook_func(
        lambda t: isinstance(t, type) and issubclass(t, Path), str
    )
    for kind in (Path, str, bool, int, float):
        converter.register_structure_hook(kind, _scalar)
    _register_named(converter, MethodConfig, METHODS, default="clove")
    _register_named(converter, TaskConfig, TASKS, default="")
    return converter


def _scalar(value: Any, kind: type[Any]) -> Any:
    """A plain value as the type of its field; nothing is guessed or rounded.

    A number may stand for a text, such as a label, and a text for a number: YAML takes 1e-3 for
    one, since it has no point.
    """
    if not isinstance(value, str | int | float) or isinstance(value, bool) != (kind is bool):
        raise ValueError(value)
    if kind is int and isinstance(value, float) and not value.is_integer():
        raise ValueError(value)
    return kind(value)


def _register_named(
    converter: cattrs.Converter, base: type[Named], registry: Registry[Any], *, default: str
) -> None:
    """Let the name in the file decide which config class the other keys belong to."""

    def is_named(cls: Any) -> bool:
        return isinstance(cls, type) and issubclass(cls, base)

    def unstructure(config: Named) -> dict[str, Any]:
        fields = make_dict_unstructure_fn(type(config), converter)(config)
        return {"name": config.name, **fields}

    def structure(values: dict[str, Any], _: Any) -> Any:
        fields = dict(values)
        cls = registry.load(str(fields.pop("name", default)))
        if issubclass(cls, MethodConfig):
            fields = dict(cls.in_todays_words(fields))
        return make_dict_structure_fn(cls, converter, _cattrs_forbid_extra_keys=True)(fields, cls)

    converter.register_unstructure_hook_func(is_named, unstructure)
    converter.register_structure_hook_func(is_named, structure)
