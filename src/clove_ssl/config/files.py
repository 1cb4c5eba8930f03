"""Read and write configs as YAML, strictly.

The file a run writes to ``config.yaml`` is the file ``--config`` reads, so a
run can always be repeated from its own directory. Unknown keys are errors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import cattrs
import yaml
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn
from cattrs.preconf.pyyaml import make_converter
from cattrs.v import format_exception

from clove_ssl.atomic import write_text
from clove_ssl.config.methods.base import MethodConfig
from clove_ssl.errors import UserError
from clove_ssl.registry import METHODS

T = TypeVar("T")


def save(config: object, path: Path) -> None:
    """Write every field, defaults included: the file must survive new defaults."""
    write_text(path, to_yaml(config))


def to_yaml(config: object) -> str:
    """The config as the text of a config file."""
    return yaml.safe_dump(_converter().unstructure(config), sort_keys=False)


def fingerprint(config: object) -> str:
    """A short hash that two configs share when they differ in nothing but ``out``."""
    fields = {k: v for k, v in _converter().unstructure(config).items() if k != "out"}
    return hashlib.sha256(yaml.safe_dump(fields).encode()).hexdigest()[:12]


def load(cls: type[T], path: Path, *, overrides: Mapping[str, Any] | None = None) -> T:
    """Read a config of type ``cls``; name the file and the key when it does not fit."""
    try:
        values = yaml.safe_load(path.read_text()) or {}
        return _converter().structure({**values, **(overrides or {})}, cls)
    except TypeError:
        raise UserError(f"{path} is not a config: expected lines like `epochs: 200`.") from None
    except FileNotFoundError:
        raise UserError(f"{path} does not exist. Give the config.yaml of a run.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a YAML file: {error}") from None
    except cattrs.BaseValidationError as error:
        raise _explain(error, cls, path) from None


def _explain(error: cattrs.BaseValidationError, cls: type, path: Path) -> UserError:
    problems = cattrs.transform_error(error, path="config", format_exception=_format)
    return UserError(f"{path} is not a valid {cls.__name__}:\n  " + "\n  ".join(problems))


def _format(error: BaseException, expected: type | None) -> str:
    return str(error) if isinstance(error, UserError) else format_exception(error, expected)


def _converter() -> cattrs.Converter:
    converter = make_converter(forbid_extra_keys=True)
    converter.register_unstructure_hook_func(
        lambda t: isinstance(t, type) and issubclass(t, Path), str
    )
    converter.register_structure_hook(Path, lambda value, _: Path(value))
    converter.register_unstructure_hook_func(
        _is_method, lambda c: _unstructure_method(converter, c)
    )
    converter.register_structure_hook_func(_is_method, lambda d, _: _structure_method(converter, d))
    return converter


def _is_method(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, MethodConfig)


def _unstructure_method(converter: cattrs.Converter, config: MethodConfig) -> dict[str, Any]:
    fields = make_dict_unstructure_fn(type(config), converter)(config)
    return {"name": config.name, **fields}


def _structure_method(converter: cattrs.Converter, values: dict[str, Any]) -> MethodConfig:
    """The name in the file decides which config class the other keys belong to."""
    fields = dict(values)
    cls = METHODS.load(str(fields.pop("name", "clove")))
    structure = make_dict_structure_fn(cls, converter, _cattrs_forbid_extra_keys=True)
    return structure(fields, cls)
