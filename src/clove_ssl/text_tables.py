"""Tables as text: in columns for a terminal, or in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

Rows = Sequence[Sequence[str]]


def in_columns(rows: Rows, *, side: Literal["left", "right"] = "left") -> Iterator[str]:
    """Lines whose columns are as wide as their longest cell; names go left, numbers right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        pairs = zip(row, widths, strict=True)
        if side == "left":
            yield "  ".join(cell.ljust(width) for cell, width in pairs).rstrip()
        else:
            yield "  ".join(cell.rjust(width) for cell, width in pairs)


def in_markdown(rows: Rows) -> str:
    """A table whose first row is its head; a bar inside a cell would end the cell."""
    head, *body = [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body])
