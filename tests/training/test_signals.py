"""A process that is asked to end does, wherever it is at that moment."""

from __future__ import annotations

import os
import signal
import time

import pytest

from clove_ssl.training.signals import Terminated, terminated_like_interrupted


class Finalized:
    """Is asked to end where exceptions are ignored."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0)


def work_until_terminated() -> None:
    with terminated_like_interrupted():
        Finalized()
        time.sleep(10)


def test_a_signal_in_a_finalizer_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated):
        work_until_terminated()
    assert "Traceback" not in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) == before
