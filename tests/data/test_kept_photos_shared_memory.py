"""Memory without a name, seen by all who hold it."""

from __future__ import annotations

import multiprocessing

from builders.shared_bytes import answer

from clove_ssl.data.kept_photos import SharedMemory


def test_processes_of_every_kind_see_the_same_bytes() -> None:
    memory = SharedMemory(4096)
    assert memory.bytes[:] == bytes(4096)
    by_address = SharedMemory.at(memory.address)
    by_address.bytes[0] = 41
    assert memory.bytes[0] == 41
    child = multiprocessing.get_context("spawn").Process(target=answer, args=(memory,))
    child.start()  # the memory is pickled, as for workers on systems that do not fork
    child.join()
    assert by_address.bytes[1] == 42
