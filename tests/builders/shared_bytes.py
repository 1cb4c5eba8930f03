"""What another process does with memory that it was given; spawned ones import it from here."""

from __future__ import annotations

from clove_ssl.data.kept_photos import SharedMemory


def answer(memory: SharedMemory) -> None:
    """Put one more than the first byte into the second."""
    with memory.locked():
        memory.bytes[1] = memory.bytes[0] + 1
