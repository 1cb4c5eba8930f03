"""Look at the pickles of a torch file before torch runs them.

``torch.load`` calls no foreign code, but it does not limit what a pickle may cost: keys that
collide, tuples in tuples that are hashed without end, a call for a tensor of terabytes. Here every
instruction is followed without doing what it says.
"""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

from clove_ssl.weights.array_pickles import mapped
from clove_ssl.weights.pickle_machine import Name, PickleMachine

MAX_INSTRUCTIONS = 600_000  # about thirty for a tensor
MAX_PICKLE_BYTES = 2**31
NEWEST_PROTOCOL = 3
"""Of pickles that torch reads without running what they hold; it writes 2 unless told otherwise."""
_PROTOCOL = 0x80  # the instruction that a pickle begins with, before the number of its protocol
_OLD_PICKLES = 5  # magic number, version, machine, content, keys of storages

_PAIRED = {"collections.OrderedDict"}
_HASHING = {"builtins.set", "__builtin__.set", "collections.Counter"}
_BYTES = {"builtins.bytearray", "__builtin__.bytearray"}


class NewerProtocol(Exception):
    """A pickle of a protocol that cannot be read safely; the message is its number."""


def check_archive_pickles(archive: zipfile.ZipFile) -> None:
    """Refuse a torch file whose pickle would keep torch busy."""
    names = [entry.filename for entry in archive.infolist()]
    if len(set(names)) != len(names):
        raise ValueError("the archive has two entries of the same name")
    for entry in archive.infolist():
        if entry.filename.endswith(".pkl"):
            if entry.file_size > MAX_PICKLE_BYTES:
                raise ValueError(f"its pickle has {entry.file_size:,} bytes")
            content = archive.read(entry)
            _check_protocol(content[:2])
            _TorchMachine(content, max_instructions=MAX_INSTRUCTIONS).run()


def check_old_pickles(path: Path) -> None:
    """The same for a file of torch before version 1.6, in which pickles follow one another."""
    content, position = mapped(path), 0
    _check_protocol(bytes(content[:2]))
    for _ in range(_OLD_PICKLES):
        machine = _TorchMachine(content, start=position, max_instructions=MAX_INSTRUCTIONS)
        machine.run()
        position = machine.position


def _check_protocol(start: bytes) -> None:
    if len(start) == 2 and start[0] == _PROTOCOL and start[1] > NEWEST_PROTOCOL:
        raise NewerProtocol(str(start[1]))


class _Something:
    """What torch would make."""

    __slots__ = ()


class _TorchMachine(PickleMachine):
    """Follows a pickle; which names are allowed is for torch to say."""

    def name(self, full: str) -> Any:
        return Name(full)

    def call(self, function: Any, args: Any) -> Any:
        full = function.full if isinstance(function, Name) else ""
        if full == "_codecs.encode":
            return self.encoded(args)
        if full in _PAIRED | _HASHING and args:
            self._check_hashed(args[0], paired=full in _PAIRED)
        # Torch's rebuilding functions check their sizes; these reserve memory for any number.
        made_of_number = any(isinstance(each, int) for each in args)
        if made_of_number and (full in _BYTES or full.endswith(("Tensor", "Storage"))):
            raise pickle.UnpicklingError(f"it asks for an empty {full}")
        return _Something()

    def build(self, instance: Any, state: Any) -> None:
        """Nothing to change."""

    def make_instance(self, class_: Any, args: Any) -> Any:
        return _Something()

    def outside(self, reference: Any) -> Any:
        return _Something()

    def set_items(self, target: Any, pairs: list[tuple[Any, Any]]) -> None:
        if type(target) is dict:
            target.update(pairs)

    def _check_hashed(self, values: Any, *, paired: bool) -> None:
        if isinstance(values, (list, tuple)):
            self.spend(len(values))
            self.check_keys([each[0] for each in values] if paired else values)
        elif not isinstance(values, dict):
            raise ValueError(f"it makes a mapping of a {type(values).__name__}")
