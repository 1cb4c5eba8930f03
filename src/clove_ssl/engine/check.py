"""The answer to one question of ``clove doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "look", "problem"]


@dataclass(frozen=True)
class Check:
    """What was looked at, how it is, and what to do about it."""

    name: str
    state: State
    text: str


def verdict(checks: list[Check], *, subject: str, healthy: str) -> str:
    """The last line of an examination: that all is well, or what to do first."""
    problems = [check for check in checks if check.state == "problem"]
    looks = sum(check.state == "look" for check in checks)
    if problems:
        count = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
        return f"{subject} has {count}. Begin with {problems[0].name}: {problems[0].text}"
    if looks:
        return f"{subject} {healthy}, with {looks} thing{'s' * (looks > 1)} to look at above."
    return f"{subject} {healthy}."
