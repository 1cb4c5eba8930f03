"""Files that cannot be read: named, counted, and forgiven up to a limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from clove_ssl.config.pretraining import DataConfig
from clove_ssl.errors import UserError


@dataclass(frozen=True)
class BadFile:
    """A file of the source that could not be read, and why."""

    name: str
    reason: str


class BadFiles:
    """All unreadable files a run has met, by name."""

    def __init__(
        self,
        config: DataConfig,
        images: int,
        *,
        known: Mapping[str, str] | None = None,
        record: Callable[[Mapping[str, str]], None] | None = None,
        names: str = "",
    ) -> None:
        """``known`` are those of an earlier start; ``record`` keeps them with the run.

        ``names`` is a fingerprint of the names of all images, which a checkpoint remembers.
        """
        self.reasons = dict(known or {})
        self.images = images
        self.names = names
        self._forgiven = forgiven_files(config, images)
        self._record = record

    def add(self, bad: BadFile) -> bool:
        """Remember a file; whether it was new."""
        is_new = bad.name not in self.reasons
        self.reasons[bad.name] = bad.reason
        return is_new

    def write_down(self) -> None:
        """Keep all that are known with the run, where this process does so."""
        if self._record is not None:
            self._record(self.reasons)

    def check(self) -> None:
        """Stop the run when there are too many."""
        count = len(self.reasons)
        if count <= self._forgiven and count < self.images:
            return
        examples = "\n".join(f"  {name}: {why}" for name, why in list(self.reasons.items())[:5])
        raise UserError(
            f"{count} of {self.images} files could not be read, more than the {self._forgiven} "
            f"that are forgiven. The first ones:\n{examples}\nAll are named in log.txt. "
            f"{self._remedy()}"
        )

    def _remedy(self) -> str:
        """What to type; a share above 1 does not exist, and nothing can be learned from none."""
        count = len(self.reasons)
        if count >= self.images:
            return "Not one can be read: give --data other images, or repair these."
        allowed = min(1.0, 1.5 * count / self.images)
        return f"Repair or remove them, or allow more: --data.max-bad {allowed:.2g}"


def forgiven_files(config: DataConfig, images: int) -> int:
    """How many unreadable files a run tolerates."""
    return max(10, int(config.max_bad * images))
