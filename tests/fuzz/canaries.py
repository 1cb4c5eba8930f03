"""Notices code of a file that runs, and whatever leaves the folder it was given.

Python tells an audit hook of every program that is started, file that is written and address that
is called. A parser does none of that, so any such event while a file is read is an escape.
"""

from __future__ import annotations

import io
import os
import pickle
import struct
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAG = "canary-was-here"
_STARTS = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "subprocess.Popen", "pty.spawn")
_REACHES = ("socket.connect", "socket.bind", "socket.getaddrinfo", "os.kill")
_CHANGES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.symlink", "os.link", "os.chmod")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_FREE = ("/dev/", "/proc/self/")


class Guard:
    """Records escapes while it watches; a hook cannot be taken back, so there is one a process."""

    def __init__(self, folder: Path) -> None:
        self._inside = (f"{folder}{os.sep}", *_FREE)
        self._folder = folder
        self._watching = False
        self._may_start = False
        self._seen: list[str] = []
        sys.addaudithook(self._hear)

    @contextmanager
    def watching(self, *, may_start: bool) -> Iterator[list[str]]:
        """Gives the list to which escapes are added."""
        self._seen, self._may_start, self._watching = [], may_start, True
        try:
            yield self._seen
        finally:
            self._watching = False
            flag = self._folder / FLAG
            if flag.exists():
                flag.unlink()
                self._seen.append(f"a canary wrote {FLAG}")

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._watching:
            return
        started = event in _STARTS and not self._may_start
        if started or event in _REACHES:
            self._seen.append(f"{event} {str(arguments)[:100]}")
        elif event in _CHANGES or event == "open":
            self._hear_file(event, arguments)

    def _hear_file(self, event: str, arguments: tuple[Any, ...]) -> None:
        path = arguments[0]
        if not isinstance(path, str | bytes) or (event == "open" and not self._writes(arguments)):
            return
        full = os.path.abspath(os.fsdecode(path))
        if not full.startswith(self._inside) and not full.endswith(".pyc"):
            self._seen.append(f"{event} {full[:100]}")

    def _writes(self, arguments: tuple[Any, ...]) -> bool:
        return isinstance(arguments[2], int) and bool(arguments[2] & _WRITES)


class _Calls:
    """Pickles as a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def canary_pickles() -> dict[str, bytes]:
    """Pickles whose code would leave a file behind, or start a program."""
    command = f"touch {FLAG}"
    calls = {
        "system": _Calls(os.system, command),
        "exec": _Calls(exec, f"open({FLAG!r}, 'w')"),
        "eval": _Calls(eval, f"open({FLAG!r}, 'w')"),
        "open": _Calls(open, FLAG, "w"),
        "mkdir": _Calls(os.mkdir, FLAG),
        "getattr": _Calls(getattr, os, "system"),
    }
    found = {
        f"canary-{name}-{protocol}": pickle.dumps({"model": {"w": call}}, protocol)
        for name, call in calls.items()
        if name != "getattr"
        for protocol in (0, 2, 4)
    }
    found["canary-instance"] = f"(S'{command}'\nios\nsystem\n.".encode()
    found["canary-object"] = f"(cos\nsystem\nS'{command}'\no.".encode()
    found["canary-newobj"] = b"\x80\x02cos\nsystem\n" + _text(command) + b"\x85\x81."
    found["canary-build"] = b"\x80\x02cbuiltins\nobject\n)\x81}" + _text("x") + b"cos\nsystem\nsb."
    found["canary-dotted"] = (
        b"\x80\x04" + _text("os") + _text("path.os.system") + b"\x93" + _text(command) + b"\x85R."
    )
    found["canary-torch"] = f"\x80\x02ctorch.serialization\nos.system\n(S'{command}'\ntR.".encode(
        "latin1"
    )
    return found


def _text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def torch_archive(pickled: bytes) -> bytes:
    """The zip file that torch writes, around any pickle."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in (("data.pkl", pickled), ("version", b"3\n"), ("byteorder", b"little")):
            archive.writestr(f"archive/{name}", content)
    return stream.getvalue()
