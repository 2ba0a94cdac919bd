"""Interruption: the first Ctrl-C asks, the second one interrupts, and nothing stays changed."""

from __future__ import annotations

import os
import signal

import pytest

from skipdec.runtime.commands.progress import Interruption


def test_first_signal_asks_and_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), Interruption() as interruption:  # noqa: PT012
        assert not interruption.is_requested()
        os.kill(os.getpid(), signal.SIGINT)
        assert interruption.is_requested()
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
