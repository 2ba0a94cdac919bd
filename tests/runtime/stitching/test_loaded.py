"""One call at a time holds loaded engines, and closing frees them once no step runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Condition, Event
from unittest.mock import Mock, create_autospec

import pytest

from skipdec.engines.backends.session import EngineBackend
from skipdec.engines.errors import CapacityError, ClosedError, SkipDecError
from skipdec.engines.memory import HostMemory
from skipdec.runtime.kv.buffers import BufferPool
from skipdec.runtime.stitching import loaded
from skipdec.runtime.stitching.loaded import EngineLock
from skipdec.runtime.stitching.protocol import Stitcher
from skipdec.runtime.stitching.slot_stitcher import SlotStitcher

SECONDS = 30  # until a hung test fails


class RecordedEngines:
    """An engine lock that records how its engines are used."""

    def __init__(self) -> None:
        self.done: list[str] = []
        stitcher: Mock = create_autospec(Stitcher, instance=True)
        stitcher.close.side_effect = lambda: self.done.append("freed")
        self.backend: Mock = create_autospec(EngineBackend, instance=True)
        self.pool = BufferPool(HostMemory(), 10**6)
        self.engines = EngineLock(stitcher, self.backend, self.pool)

    def slots(self) -> SlotStitcher:
        """Return slots that hold memory until they are closed."""
        buffer = self.pool.acquire(5000)
        slots: Mock = create_autospec(SlotStitcher, instance=True, planned_bytes=0)

        def close() -> None:
            self.done.append("closed")
            self.pool.release(buffer)

        slots.close.side_effect = close
        return slots


@pytest.fixture
def recorded() -> RecordedEngines:
    return RecordedEngines()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Event:
    """Return an event that is set once a thread waits for a step to end."""
    event = Event()

    class Announced(Condition):
        def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
            if not predicate():
                event.set()
            return super().wait_for(predicate, timeout)

    monkeypatch.setattr(loaded, "Condition", Announced)
    return event


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


def test_close_waits_for_the_running_step_and_ends_the_call(
    waits: Event, threads: ThreadPoolExecutor
) -> None:
    recorded, in_step = RecordedEngines(), Event()

    def step() -> None:
        with recorded.engines.step():
            in_step.set()
            assert waits.wait(SECONDS), "close did not wait"
            recorded.done.append("step")

    def call() -> None:
        with recorded.engines.hold(recorded.slots()):
            step()
            step()

    running = threads.submit(call)
    assert in_step.wait(SECONDS)
    threads.submit(recorded.engines.close).result(SECONDS)
    with pytest.raises(ClosedError):
        running.result(SECONDS)
    assert recorded.done == ["step", "closed", "freed"]
    assert recorded.pool.in_use_bytes == recorded.pool.idle_bytes == 0
    recorded.backend.close.assert_called_once()


def test_close_waits_while_the_holder_keeps_its_slots(
    waits: Event, threads: ThreadPoolExecutor
) -> None:
    recorded = RecordedEngines()
    with recorded.engines.hold(recorded.slots()):
        with recorded.engines.unfreed():
            closing = threads.submit(recorded.engines.close)
            assert waits.wait(SECONDS)
            assert recorded.done == []
        closing.result(SECONDS)
        assert recorded.done == ["closed", "freed"]
        with recorded.engines.unfreed():  # still allowed, on closed slots
            recorded.done.append("kept")
    assert recorded.done == ["closed", "freed", "kept"]


def test_close_does_not_wait_for_a_call_between_steps(recorded: RecordedEngines) -> None:
    with recorded.engines.hold(recorded.slots()):
        with recorded.engines.step():
            pass
        recorded.engines.close()
        assert recorded.done == ["closed", "freed"]
        assert recorded.pool.in_use_bytes == recorded.pool.idle_bytes == 0
        with pytest.raises(ClosedError), recorded.engines.step():
            recorded.done.append("step")
    assert recorded.done == ["closed", "freed"]
    assert recorded.pool.in_use_bytes == recorded.pool.idle_bytes == 0


def test_close_inside_a_step_frees_at_its_end(recorded: RecordedEngines) -> None:
    with recorded.engines.step():
        recorded.engines.close()
        assert recorded.done == []
    assert recorded.done == ["freed"]
    recorded.backend.close.assert_called_once()


def test_trim_waits_for_the_running_step(waits: Event, threads: ThreadPoolExecutor) -> None:
    recorded, in_step = RecordedEngines(), Event()

    def step() -> None:
        with recorded.engines.step():
            recorded.pool.release(recorded.pool.acquire(5000))
            in_step.set()
            assert waits.wait(SECONDS), "trim did not wait"
            assert recorded.pool.idle_bytes > 0

    running = threads.submit(step)
    assert in_step.wait(SECONDS)
    recorded.engines.trim()
    running.result(SECONDS)
    assert recorded.pool.idle_bytes == 0


def test_a_step_out_of_memory_says_what_to_lower(recorded: RecordedEngines) -> None:
    with pytest.raises(CapacityError, match="lower max_batch_size"), recorded.engines.step():
        raise MemoryError
    with recorded.engines.step():
        recorded.done.append("step")
    assert recorded.done == ["step"]


def test_calls_of_other_threads_wait_in_order_of_arrival(
    waits: Event, threads: ThreadPoolExecutor
) -> None:
    recorded = RecordedEngines()

    def call(name: str) -> None:
        with recorded.engines.hold():
            recorded.done.append(name)

    with recorded.engines.hold():
        first = threads.submit(call, "first")
        assert waits.wait(SECONDS), "the first did not wait"
        waits.clear()
        second = threads.submit(call, "second")
        assert waits.wait(SECONDS), "the second did not wait"
        assert recorded.done == []
    first.result(SECONDS)
    second.result(SECONDS)
    assert recorded.done == ["first", "second"]


def test_close_ends_waiting_calls(waits: Event, threads: ThreadPoolExecutor) -> None:
    recorded = RecordedEngines()

    def call() -> None:
        with recorded.engines.hold():
            recorded.done.append("ran")

    with recorded.engines.hold():
        waiting = threads.submit(call)
        assert waits.wait(SECONDS), "the call did not wait"
        recorded.engines.close()
        with pytest.raises(ClosedError):
            waiting.result(SECONDS)
    assert recorded.done == ["freed"]


def test_a_call_does_not_wait_for_a_running_batch(
    recorded: RecordedEngines, threads: ThreadPoolExecutor
) -> None:
    with recorded.engines.hold(lasts=True):
        call = threads.submit(recorded.engines.hold().__enter__)
        with pytest.raises(SkipDecError, match="a running batch holds it"):
            call.result(SECONDS)


def test_a_waiting_call_is_refused_once_a_running_batch_holds(
    waits: Event, threads: ThreadPoolExecutor
) -> None:
    recorded, over = RecordedEngines(), Event()

    def last() -> None:
        with recorded.engines.hold(lasts=True):
            assert over.wait(SECONDS)

    with recorded.engines.hold():
        lasting = threads.submit(last)
        assert waits.wait(SECONDS), "the first did not wait"
        waits.clear()
        call = threads.submit(recorded.engines.hold().__enter__)
        assert waits.wait(SECONDS), "the second did not wait"
    try:
        with pytest.raises(SkipDecError, match="a running batch holds it"):
            call.result(SECONDS)
    finally:
        over.set()
    lasting.result(SECONDS)


def test_a_second_call_within_the_first_is_refused(recorded: RecordedEngines) -> None:
    with (
        recorded.engines.hold(),
        pytest.raises(SkipDecError, match="is busy"),
        recorded.engines.hold(),
    ):
        pass
    with recorded.engines.hold():
        pass


def test_a_fork_can_neither_use_nor_free_its_parents_engines(
    recorded: RecordedEngines, monkeypatch: pytest.MonkeyPatch
) -> None:
    with recorded.engines.hold(recorded.slots()):
        with monkeypatch.context() as fork:
            fork.setattr(os, "getpid", lambda: -1)
            with pytest.raises(SkipDecError, match=r"-1, is a fork: .* by 'spawn'"):
                recorded.engines.step().__enter__()
            with pytest.raises(SkipDecError, match="is a fork"):
                recorded.engines.hold().__enter__()
            recorded.engines.trim()
            recorded.engines.close()
        assert recorded.done == []
        with recorded.engines.step():
            recorded.done.append("step")
    assert recorded.done == ["step", "closed"]
