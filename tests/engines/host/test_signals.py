"""The first signal requests a stop, the second interrupts; handlers are restored."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import pytest

from skipdec.engines.host.signals import (
    SIGNALS,
    Interrupted,
    Interruption,
    Interrupts,
    interrupts_deferred,
    raise_if_interrupted,
)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Set handlers as at Python's start; in the background SIGINT may be ignored."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def interrupts(handlers: None) -> Interrupts:
    installed = Interrupts()
    installed.install()
    return installed


def test_the_first_signal_requests_a_stop_and_the_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), Interruption() as interruption:  # noqa: PT012
        assert not interruption.is_requested()
        os.kill(os.getpid(), signal.SIGINT)
        assert interruption.is_requested()
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("number", SIGNALS)
def test_a_deferred_signal_is_raised_at_the_end_of_the_block(
    interrupts: Interrupts, number: signal.Signals
) -> None:
    reached = []
    notify = partial(reached.append, "notified")
    with pytest.raises(Interrupted) as caught, interrupts_deferred(notify):  # noqa: PT012
        os.kill(os.getpid(), number)
        reached.append("the end")
    assert (caught.value.number, reached) == (number, ["notified", "the end"])


def test_an_interrupt_swallowed_by_a_finaliser_is_raised_on_request(interrupts: Interrupts) -> None:
    raise_if_interrupted()
    with suppress(Interrupted):
        os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(Interrupted):
        raise_if_interrupted()


def test_sigterm_ends_a_program_without_a_handler() -> None:
    with interrupts_deferred():
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_ignored_signal_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Interrupts().install()
    with interrupts_deferred():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
