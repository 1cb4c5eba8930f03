"""The range of every number in a config, stated in the type of its field and checked once.

A field of the type ``Share`` takes 0 to 1, ``tuple[Share, ...]`` some of these,
``Steps | None`` a number of steps or nothing. A config that inherits from
``Ranged`` refuses everything else when it is made, wherever it comes from: the
command line, a file or Python. Upper ends are far above what anybody uses; they
stand where more would only hang or ask for petabytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache, wraps
from numbers import Integral, Real
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from clove_ssl.errors import UserError


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` (not itself if ``above``) to ``high`` (not itself if ``below``).

    Infinity and what is no number are in no range.
    """

    low: float
    high: float
    above: bool = False
    below: bool = False

    def __contains__(self, value: float) -> bool:
        over = self.low < value if self.above else self.low <= value
        return over and (value < self.high if self.below else value <= self.high)

    def __str__(self) -> str:
        first = (
            f"above {_number(self.low)}, up to" if self.above else f"from {_number(self.low)} to"
        )
        return f"{first} {'below ' if self.below else ''}{_number(self.high)}"


@dataclass(frozen=True)
class Several:
    """What a tuple of numbers must be, besides each of them being in range."""

    least: int = 0
    rising: bool = False
    unlike: bool = False

    def allows(self, values: Sequence[float]) -> bool:
        """Whether there are enough values, in order and unlike each other where they must be."""
        if len(values) < self.least or (self.unlike and len(set(values)) < len(values)):
            return False
        return not self.rising or list(values) == sorted(values)

    def __str__(self) -> str:
        told = {
            ", one at least": self.least > 0,
            ", the smaller first": self.rising,
            ", each once": self.unlike,
        }
        return "".join(text for text, holds in told.items() if holds)


LARGEST_SEED = 2**63 - 1  # what generators of random numbers take

Share = Annotated[float, Range(0, 1)]
PartialShare = Annotated[float, Range(0, 1, below=True)]
PositiveShare = Annotated[float, Range(0, 1, above=True)]
Cosine = Annotated[float, Range(-1, 1)]
NonNegative = Annotated[float, Range(0, 10**9)]
Weight = NonNegative
Positive = Annotated[float, Range(0, 10**9, above=True)]
Ratio = Annotated[float, Range(0, 100, above=True)]
LearningRate = Annotated[float, Range(0, 10**4, above=True)]
Epochs = Annotated[int, Range(1, 10**6)]
Steps = Annotated[int, Range(1, 10**9)]
StepsFromZero = Annotated[int, Range(0, 10**9)]
BatchSize = Annotated[int, Range(1, 2**20)]
ImageCount = Annotated[int, Range(1, 10**9)]
SceneSide = Annotated[int, Range(32, 4096)]  # below it most objects are specks
SceneCount = Annotated[int, Range(1, 10**7)]
ImageSide = Annotated[int, Range(1, 2**13)]
Grid = Annotated[int, Range(1, 32)]
Workers = Annotated[int, Range(0, 1024)]
Prefetch = Annotated[int, Range(1, 1024)]
Width = Annotated[int, Range(1, 2**16)]
WidthFromZero = Annotated[int, Range(0, 2**16)]
Layers = Annotated[int, Range(0, 64)]
QueueSize = Annotated[int, Range(1, 2**24)]
Candidates = Annotated[int, Range(1, 10**6)]
Seed = Annotated[int, Range(0, LARGEST_SEED)]

Shares = Annotated[tuple[Share, ...], Several(least=1)]
Areas = Annotated[tuple[PositiveShare, PositiveShare], Several(rising=True)]
Extent = Annotated[tuple[Ratio, Ratio], Several(rising=True)]
Positives = Annotated[tuple[Positive, ...], Several(least=1)]
ImageSides = Annotated[tuple[ImageSide, ...], Several(least=1)]
Seeds = Annotated[tuple[Seed, ...], Several(least=1, unlike=True)]


class Ranged:
    """A dataclass whose numbers are checked before its own ``__post_init__`` sees them."""

    def __init_subclass__(cls) -> None:
        """Let no subclass forget the check when it brings a ``__post_init__`` of its own."""
        super().__init_subclass__()
        own = cls.__dict__.get("__post_init__")
        if own is not None:

            @wraps(own)
            def checked(self: Ranged) -> None:
                check_ranges(self)
                own(self)

            cls.__post_init__ = checked  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        check_ranges(self)


class OutOfRange(UserError):
    """A number of a config that is not in its range."""

    def __init__(self, config: object, name: str, rule: Rule, value: object) -> None:
        self.field, self.value, self.rule = name, value, rule
        self.usual = _default(type(config), name)
        super().__init__(self.told(f"{type(config).__name__}.{name}"))

    def __reduce__(self) -> tuple[type[UserError], tuple[str]]:
        """Another process gets the message; it knows neither config nor command line."""
        return UserError, (str(self),)

    def told(self, name: str) -> str:
        """The message, with the field called ``name``."""
        value = spelled(self.value)[:60] or "empty"
        remedy = f", or try {self.usual}" if self.usual else ""
        return f"{name} is {value}; expected {self.rule}. Leave it out for the usual value{remedy}."


@dataclass(frozen=True)
class Rule:
    """What a field takes: numbers of a range, alone or several, or nothing at all."""

    range: Range
    whole: bool
    length: int | None = None
    """How many numbers a tuple has; 0 for any number of them, None for no tuple."""
    several: Several = Several()
    optional: bool = False

    def allows(self, value: Any) -> bool:
        """Whether the field can have this value."""
        if value is None:
            return self.optional
        if self.length is None:
            return self._takes(value)
        if not isinstance(value, tuple | list) or (self.length and len(value) != self.length):
            return False
        return all(map(self._takes, value)) and self.several.allows(value)

    def _takes(self, value: Any) -> bool:
        is_number: bool = isinstance(value, Integral if self.whole else Real)
        return is_number and not isinstance(value, bool) and value in self.range

    def __str__(self) -> str:
        kind = "whole number" if self.whole else "number"
        if self.length is None:
            return f"a {kind} {self.range}"
        count = {0: "", 2: "two ", 4: "four "}.get(self.length, f"{self.length} ")
        return f"{count}{kind}s {self.range}{self.several}"


def check_ranges(config: Ranged) -> None:
    """Refuse a config with a number that is not in its range; numbers become Python's own."""
    for name, rule in rules(type(config)).items():  # type: ignore[arg-type]
        value = getattr(config, name)
        if not rule.allows(value):
            raise OutOfRange(config, name, rule, value)
        object.__setattr__(config, name, _plain(value))


def _plain(value: Any) -> Any:
    """The same, without the numbers of NumPy, which no file of a run can hold."""
    if isinstance(value, tuple | list):
        return type(value)(map(_plain, value))
    if value is None or type(value) in (int, float):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


@cache  # reading type hints takes longer than all checks
def rules(cls: type) -> dict[str, Rule]:
    """What each field of a config takes, for those that hold numbers with a range."""
    hints = get_type_hints(cls, include_extras=True)
    found = {each.name: _rule(hints[each.name]) for each in fields(cls)}
    return {name: rule for name, rule in found.items() if rule is not None}


def _rule(kind: Any, *extras: Any) -> Rule | None:
    """The rule that a type states, if it states one."""
    if get_origin(kind) is Annotated:
        inner, *more = get_args(kind)
        return _rule(inner, *more)
    if get_origin(kind) in (Union, UnionType):
        inner, *others = get_args(kind)
        found = _rule(inner, *extras)
        return replace(found, optional=True) if found and others == [type(None)] else found
    if get_origin(kind) is tuple:
        return _tuple_rule(get_args(kind), extras)
    stated = [extra for extra in extras if isinstance(extra, Range)]
    return Rule(stated[0], whole=kind is int) if stated else None


def _tuple_rule(inner: tuple[Any, ...], extras: tuple[Any, ...]) -> Rule | None:
    each = _rule(inner[0])
    if each is None:
        return None
    several = next((extra for extra in extras if isinstance(extra, Several)), Several())
    length = 0 if Ellipsis in inner else len(inner)
    return Rule(each.range, each.whole, length, several)


def as_typed(error: UserError, args: Sequence[str]) -> str:
    """The message of an error, with a field under the name that ``args`` give it."""
    if not isinstance(error, OutOfRange):
        return str(error)
    options = f" {' '.join(args)}".replace("=", " ").split(" --")[1:]
    typed = [(option.split() or [""])[0] for option in options]
    values = [option.split()[1:] == spelled(error.value).split() for option in options]
    # Configs of several kinds share names of fields; the value tells which of them was meant.
    meant = max(
        (
            (fits, name)
            for name, fits in zip(typed, values, strict=True)
            if name.replace("_", "-").split(".")[-1] == error.field.replace("_", "-")
        ),
        default=None,
    )
    return str(error) if meant is None else error.told(f"--{meant[1]}")


def spelled(value: object) -> str:
    """A value as it is typed on the command line."""
    if isinstance(value, tuple | list):
        return " ".join(map(spelled, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _default(cls: type, name: str) -> str:
    """The default of a field as it is typed, or nothing where it is none that can be typed."""
    [found] = [each for each in fields(cls) if each.name == name]
    return "" if found.default in (MISSING, None, ()) else spelled(found.default)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,g}"
