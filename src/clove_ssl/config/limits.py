"""Numbers that a config refuses, before anything is started with them."""

from __future__ import annotations

import math

from clove_ssl.errors import UserError

LARGEST_SEED = 2**63 - 1  # what generators of random numbers take


def check_least(least: float, section: str = "", /, **values: float | None) -> None:
    """Refuse values below ``least``, infinite ones and those that are no numbers."""
    for name, value in values.items():
        if value is not None and not least <= value < math.inf:
            raise _refusal(section, name, value, f"{least:g} or more")


def check_positive(section: str = "", /, **values: float | None) -> None:
    """Refuse values that are not above 0, infinite ones and those that are no numbers."""
    for name, value in values.items():
        if value is not None and not 0 < value < math.inf:
            raise _refusal(section, name, value, "a number above 0")


def check_share(section: str = "", /, **values: float) -> None:
    """Refuse values outside 0 to 1, and those that are no numbers."""
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise _refusal(section, name, value, "a number from 0 to 1")


def check_below_one(section: str = "", /, **values: float) -> None:
    """Refuse values outside 0 to 1, 1 itself, and those that are no numbers."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise _refusal(section, name, value, "a number from 0 to below 1")


def check_all_positive(section: str = "", /, **lists: tuple[float, ...]) -> None:
    """Refuse lists without values, and those with a value that is not above 0 or is infinite."""
    for name, values in lists.items():
        if not values or not all(0 < value < math.inf for value in values):
            typed = " ".join(f"{value:g}" for value in values) or "nothing"
            raise _refusal(section, name, typed, "one or more numbers above 0")


def check_seed(seed: int) -> None:
    """Refuse what no generator of random numbers takes."""
    if not 0 <= seed <= LARGEST_SEED:
        raise _refusal("", "seed", seed, "a whole number from 0 on, below 2**63")


def _refusal(section: str, name: str, value: float | str, expected: str) -> UserError:
    path = f"{section}.{name}" if section else name
    option = path.replace("_", "-")
    return UserError(f"{path}={value}: expected {expected}. Leave out --{option} for the usual.")
