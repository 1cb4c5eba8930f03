"""Ctrl-C is answered at once, whatever the program is doing."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from clove_ssl.__main__ import entry
from clove_ssl.interrupts import STOPPING, STOPPING_NOW, answered_with, answering


@pytest.fixture
def ignored() -> Iterator[None]:
    """Python handles the signal, but nothing happens."""
    previous = signal.signal(signal.SIGINT, lambda *_: None)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.mark.usefixtures("ignored")
def test_the_answer_does_not_wait_for_a_long_instruction() -> None:
    said: list[tuple[str, bool]] = []
    returned = threading.Event()
    heard = threading.Event()

    def say(text: str) -> None:
        said.append((text, returned.is_set()))
        heard.set()

    with answering(say), answered_with("after this step"):
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        while not said:  # one instruction of Python each, during which no handler can run
            hashlib.pbkdf2_hmac("sha256", b"", b"", 400_000)
        returned.set()
        assert heard.wait(10)
    assert said == [("after this step", False)]


@pytest.mark.usefixtures("ignored")
def test_the_second_one_is_taken_seriously(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    ended = threading.Event()
    monkeypatch.setattr("clove_ssl.interrupts.GRACE", 0.01)
    monkeypatch.setattr(os, "_exit", lambda code: ended.set())
    with answering(said.append):
        for number in (1, 2):
            os.kill(os.getpid(), signal.SIGINT)
            while len(said) < number:
                pass
        assert ended.wait(10)  # the program was still there
    assert said == [STOPPING, STOPPING_NOW]


BUSY = """
import hashlib
from clove_ssl import cli

def work(args):
    print("busy", flush=True)
    while True:
        hashlib.pbkdf2_hmac("sha256", b"", b"", 60_000_000)  # many seconds of one instruction

cli.VERBS["doctor"] = work
raise SystemExit(cli.main(["doctor"]))
"""


def _hear_interrupts() -> None:
    """A shell that starts the tests in the background lets them ignore what it means to say."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_every_verb_answers_a_real_signal_at_once() -> None:
    """``main`` answers for all of them; twice ends even what does not listen."""
    command = [sys.executable, "-c", BUSY]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, preexec_fn=_hear_interrupts
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert process.stdout.readline() == "busy\n"
            sent = time.monotonic()
            process.send_signal(signal.SIGINT)
            assert process.stderr.readline() == "\n"
            assert process.stderr.readline() == f"clove: {STOPPING}\n"
            assert time.monotonic() - sent < 5, "it waited for the instruction"
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=30) in (130, -signal.SIGINT)
        finally:
            process.kill()


def test_it_is_answered_while_the_command_line_is_being_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "clove_ssl.cli":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "clove_ssl.cli", raising=False)
    monkeypatch.delattr("clove_ssl.cli", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        entry()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "clove: interrupted\n"
