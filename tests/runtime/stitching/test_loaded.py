"""Loaded engines are one call's at a time, and freed when no step runs, whoever closes."""

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

SECONDS = 30  # after which a test that hangs fails


class Room:
    """Engines that write down what is done with them."""

    def __init__(self) -> None:
        self.done: list[str] = []
        stitcher: Mock = create_autospec(Stitcher, instance=True)
        stitcher.close.side_effect = lambda: self.done.append("freed")
        self.backend: Mock = create_autospec(EngineBackend, instance=True)
        self.pool = BufferPool(HostMemory(), 10**6)
        self.engines = EngineLock(stitcher, self.backend, self.pool)

    def slots(self) -> SlotStitcher:
        """Slots that have memory until they are closed."""
        buffer = self.pool.acquire(5000)
        slots: Mock = create_autospec(SlotStitcher, instance=True, planned_bytes=0)

        def close() -> None:
            self.done.append("closed")
            self.pool.release(buffer)

        slots.close.side_effect = close
        return slots


@pytest.fixture
def room() -> Room:
    return Room()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Event:
    """Set as soon as someone waits for a step to end."""
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


def test_close_waits_for_the_step_that_runs_and_ends_the_call(
    waits: Event, threads: ThreadPoolExecutor
) -> None:
    room, in_step = Room(), Event()

    def step() -> None:
        with room.engines.step():
            in_step.set()
            assert waits.wait(SECONDS), "close did not wait"
            room.done.append("step")

    def call() -> None:
        with room.engines.hold(room.slots()):
            step()
            step()

    running = threads.submit(call)
    assert in_step.wait(SECONDS)
    threads.submit(room.engines.close).result(SECONDS)
    with pytest.raises(ClosedError):
        running.result(SECONDS)
    assert room.done == ["step", "closed", "freed"]
    assert room.pool.in_use_bytes == room.pool.idle_bytes == 0
    room.backend.close.assert_called_once()


def test_close_waits_while_the_holder_keeps_its_slots(
    waits: Event, threads: ThreadPoolExecutor
) -> None:
    room = Room()
    with room.engines.hold(room.slots()):
        with room.engines.unfreed():
            closing = threads.submit(room.engines.close)
            assert waits.wait(SECONDS)
            assert room.done == []
        closing.result(SECONDS)
        assert room.done == ["closed", "freed"]
        with room.engines.unfreed():  # still runs, on slots that are closed
            room.done.append("kept")
    assert room.done == ["closed", "freed", "kept"]


def test_close_does_not_wait_for_a_call_that_rests(room: Room) -> None:
    with room.engines.hold(room.slots()):
        with room.engines.step():
            pass
        room.engines.close()
        assert room.done == ["closed", "freed"]
        assert room.pool.in_use_bytes == room.pool.idle_bytes == 0
        with pytest.raises(ClosedError), room.engines.step():
            room.done.append("step")
    assert room.done == ["closed", "freed"]
    assert room.pool.in_use_bytes == room.pool.idle_bytes == 0


def test_close_inside_a_step_leaves_freeing_to_its_end(room: Room) -> None:
    with room.engines.step():
        room.engines.close()
        assert room.done == []
    assert room.done == ["freed"]
    room.backend.close.assert_called_once()


def test_trim_waits_for_the_step_that_runs(waits: Event, threads: ThreadPoolExecutor) -> None:
    room, in_step = Room(), Event()

    def step() -> None:
        with room.engines.step():
            room.pool.release(room.pool.acquire(5000))
            in_step.set()
            assert waits.wait(SECONDS), "trim did not wait"
            assert room.pool.idle_bytes > 0

    running = threads.submit(step)
    assert in_step.wait(SECONDS)
    room.engines.trim()
    running.result(SECONDS)
    assert room.pool.idle_bytes == 0


def test_a_step_that_runs_out_of_memory_says_what_to_lower(room: Room) -> None:
    with pytest.raises(CapacityError, match="lower max_batch_size"), room.engines.step():
        raise MemoryError
    with room.engines.step():
        room.done.append("step")
    assert room.done == ["step"]


def test_calls_of_other_threads_wait_in_order_of_arrival(
    waits: Event, threads: ThreadPoolExecutor
) -> None:
    room = Room()

    def call(name: str) -> None:
        with room.engines.hold():
            room.done.append(name)

    with room.engines.hold():
        first = threads.submit(call, "first")
        assert waits.wait(SECONDS), "the first did not wait"
        waits.clear()
        second = threads.submit(call, "second")
        assert waits.wait(SECONDS), "the second did not wait"
        assert room.done == []
    first.result(SECONDS)
    second.result(SECONDS)
    assert room.done == ["first", "second"]


def test_close_ends_the_wait_of_a_call(waits: Event, threads: ThreadPoolExecutor) -> None:
    room = Room()

    def call() -> None:
        with room.engines.hold():
            room.done.append("ran")

    with room.engines.hold():
        waiting = threads.submit(call)
        assert waits.wait(SECONDS), "it did not wait"
        room.engines.close()
        with pytest.raises(ClosedError):
            waiting.result(SECONDS)
    assert room.done == ["freed"]


def test_a_call_that_lasts_is_not_waited_for(room: Room, threads: ThreadPoolExecutor) -> None:
    with room.engines.hold(lasts=True):
        call = threads.submit(room.engines.hold().__enter__)
        with pytest.raises(SkipDecError, match="a running batch holds it"):
            call.result(SECONDS)


def test_a_call_that_waits_is_refused_once_one_that_lasts_holds(
    waits: Event, threads: ThreadPoolExecutor
) -> None:
    room, over = Room(), Event()

    def last() -> None:
        with room.engines.hold(lasts=True):
            assert over.wait(SECONDS)

    with room.engines.hold():
        lasting = threads.submit(last)
        assert waits.wait(SECONDS), "the first did not wait"
        waits.clear()
        call = threads.submit(room.engines.hold().__enter__)
        assert waits.wait(SECONDS), "the second did not wait"
    try:
        with pytest.raises(SkipDecError, match="a running batch holds it"):
            call.result(SECONDS)
    finally:
        over.set()
    lasting.result(SECONDS)


def test_a_second_call_within_the_first_is_refused(room: Room) -> None:
    with (
        room.engines.hold(),
        pytest.raises(SkipDecError, match="is busy"),
        room.engines.hold(),
    ):
        pass
    with room.engines.hold():
        pass


def test_a_fork_may_neither_use_nor_free_its_parents_engines(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    with room.engines.hold(room.slots()):
        with monkeypatch.context() as fork:
            fork.setattr(os, "getpid", lambda: -1)
            with pytest.raises(SkipDecError, match=r"-1, is a fork: .* by 'spawn'"):
                room.engines.step().__enter__()
            with pytest.raises(SkipDecError, match="is a fork"):
                room.engines.hold().__enter__()
            room.engines.trim()
            room.engines.close()
        assert room.done == []
        with room.engines.step():
            room.done.append("step")
    assert room.done == ["step", "closed"]
