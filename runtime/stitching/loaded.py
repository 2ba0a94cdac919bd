"""The loaded engines of one generator: who uses them, and when they are freed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition, get_ident
from typing import TypeVar

from ...engines.backends.device import Device
from ...engines.backends.session import EngineBackend
from ...engines.errors import CapacityError, ClosedError, SkipDecError
from ...engines.host.exits import NATIVE_WORK
from ...engines.host.process import HomeProcess
from ..kv.pool import BufferPool, KVMemory
from .slots import SlotStitcher
from .stitcher import Stitcher

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class _Call:
    """Who holds the engines, or waits for them."""

    thread: int
    lasts: bool


class LoadedEngines:
    """Engines and their KV memory, used by one call at a time, a step at a time; others queue.

    A call (`exclusive`) may rest between two steps for as long as it likes, as a stream does that
    nobody reads; `close` waits for a running step only. Whoever is in a call afterwards gets
    ClosedError from its next step. Every method may be called from any thread.

    ``backend`` and ``pool`` belong to this object from here on.
    """

    def __init__(self, stitcher: Stitcher, backend: EngineBackend, pool: BufferPool) -> None:
        self.pool = pool
        self._stitcher: Stitcher | None = stitcher
        self._backend = backend
        self._slots: SlotStitcher | None = None  # of the engine that holds the call
        self._planned_bytes = 0
        self._is_closed = False
        self._home = HomeProcess("Generator", "open a generator here")
        self._changed = Condition()  # guards all of the above and below
        self._stepping: int | None = None  # the thread that runs a step
        self._holder: _Call | None = None
        self._queue: deque[_Call] = deque()  # of calls that wait for the holder's end

    @property
    def device(self) -> Device | None:
        """The device that the engines run on; None for the CPU."""
        return self._backend.device

    @property
    def kv_memory(self) -> KVMemory:
        """See Generator."""
        assert self.pool.limit is not None
        return KVMemory(
            limit=self.pool.limit,
            planned=self._planned_bytes if self._slots is None else self._slots.planned_bytes,
            peak=self.pool.peak_bytes,
            held=self.pool.idle_bytes,
        )

    @contextmanager
    def exclusive(self, *, planned_bytes: int, lasts: bool = False) -> Iterator[None]:
        """Hold the engines for one call, which plans to use so much KV memory.

        Another thread's call is waited for, in order of arrival, unless it ``lasts``: as long as
        somebody likes, as an engine does. Raises what `require_usable` raises, and SkipDecError
        where waiting would never end: this thread holds them itself, or a call that lasts does.
        """
        self.require_usable()
        call = _Call(get_ident(), lasts)
        with self._changed:
            self._enqueue(call)
            try:
                self._changed.wait_for(lambda: self._is_closed or self._is_turn_of(call))
                self.require_usable()
            finally:
                self._queue.remove(call)
                self._changed.notify_all()
            self._holder = call
            self._planned_bytes = planned_bytes
            self.pool.reset_peak()
        try:
            yield
        finally:
            if not self._home.is_left:
                with self._changed:
                    self._holder = None
                    self._changed.notify_all()

    @contextmanager
    def slots(self, slots: SlotStitcher) -> Iterator[None]:
        """Own the slots of an engine that holds the call, which are closed at the block's end."""
        with self._changed:
            self.require_usable()
            self._slots = slots
        try:
            yield
        finally:
            if not self._home.is_left:
                with self._changed:
                    self._close_slots()

    def run(self, step: Callable[[Stitcher], T]) -> T:
        """Return ``step(stitcher)``; nothing is freed meanwhile. It must not keep the stitcher.

        Raises what `require_usable` raises, ClosedError while the interpreter exits, and
        CapacityError where memory runs out.
        """
        self.require_usable()  # a fork may have inherited the lock, taken
        with NATIVE_WORK:
            return self._run(step)

    def _run(self, step: Callable[[Stitcher], T]) -> T:
        with self._changed:
            self._stepping = get_ident()
        try:
            return step(self.require_usable())
        except MemoryError as error:
            raise CapacityError(
                "memory of this machine",
                "a step needs more than can be had; lower max_batch_size or kv_memory, or use "
                "shorter prompts",
            ) from error
        finally:
            with self._changed:
                self._stepping = None
                if self._is_closed:
                    self._free()
                self._changed.notify_all()

    def trim(self) -> None:
        """Free the memory that no call uses."""
        if not self._home.is_left:
            with self._between_steps():
                self.pool.trim()

    def close(self) -> None:
        """Free all, once no step is running; idempotent.

        Inside a step (a signal handler), returns at once: the step frees all when it ends. In a
        forked child, does nothing: what it would free is its parent's.
        """
        if self._home.is_left:
            return
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()  # calls that wait end
        with self._between_steps() as may_free:
            if may_free:
                self._free()

    def require_usable(self) -> Stitcher:
        """Return the stitcher. Raises ClosedError, or SkipDecError in a forked child."""
        self._home.require()
        if self._is_closed or self._stitcher is None:
            raise ClosedError("Generator", "is closed; open the bundle again")
        return self._stitcher

    def _enqueue(self, call: _Call) -> None:
        holder = self._holder
        if holder is not None and holder.thread == call.thread:
            raise SkipDecError(
                "Generator",
                "is busy in this very thread: an engine or a stream is open; close it first, or "
                "open a second generator",
            )
        if holder is not None and holder.lasts:
            raise SkipDecError(
                "Generator",
                "is busy: an engine holds it; send requests to the engine, close it, or open a "
                "second generator",
            )
        self._queue.append(call)

    def _is_turn_of(self, call: _Call) -> bool:
        return self._holder is None and self._queue[0] is call

    @contextmanager
    def _between_steps(self) -> Iterator[bool]:
        """Keep steps from beginning once none is running; False if this thread is running one."""
        with self._changed:
            is_inside = self._stepping == get_ident()
            if not is_inside:
                self._changed.wait_for(lambda: self._stepping is None)
            yield not is_inside

    def _close_slots(self) -> None:
        if self._slots is not None:
            self._planned_bytes = self._slots.planned_bytes
            self._slots.close()
            self._slots = None

    def _free(self) -> None:
        if self._stitcher is None:
            return
        try:
            self._close_slots()
            self._stitcher.close()
        finally:
            self._stitcher = None
            self.pool.trim()
            self._backend.close()
