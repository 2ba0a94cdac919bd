"""Loads a bundle's engines, creates slots on them, and locks them for one call: EngineLock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from threading import Condition, get_ident
from time import perf_counter, thread_time
from typing import cast

from ...engines.backends.device import Device, DeviceMemory
from ...engines.backends.session import EngineBackend, EngineSession
from ...engines.bundle import EngineBundle
from ...engines.errors import BundleError, CapacityError, ClosedError, SkipDecError
from ...engines.host.process import NATIVE_WORK, HomeProcess
from ...engines.memory import Buffer
from ..drafting.config import DraftConfig
from ..kv.buffers import BufferPool, KVMemory
from ..kv.cache import SlotCache
from ..kv.plans import SlotMemory
from ..kv.prefixes import PrefixCache
from .device.slot_stitcher import DeviceSlotStitcher, device_slot_cache
from .device.stitcher import DeviceStitcher
from .drafts import DraftEngines
from .host.slot_stitcher import HostSlotStitcher
from .host.stitcher import HostStitcher
from .protocol import Stitcher
from .slot_stitcher import SlotStitcher


def load_stitcher(
    bundle: EngineBundle, backend: EngineBackend, max_rows: int, padded_rows: Callable[[int], int]
) -> Stitcher:
    """Load all engines of ``bundle`` into the stitcher that ``backend`` needs.

    Engines that only drafts run are loaded when a draft first needs them (`Stitcher.drafts`).
    Layers with static capacities are loaded in their smallest bucket; the plans of larger buckets
    are loaded when a batch first needs them, and then kept. If the bundle requires it, weights that
    the backend does not hash itself are hashed at the same time. Raises the errors of the backend's
    ``load``.
    """
    manifest = bundle.manifest
    if backend.device is None and manifest.hidden_dtype == "bfloat16":
        raise BundleError(
            str(bundle.path),
            "computes in bfloat16, which ONNX Runtime's operators can't on a CPU; export the model "
            "again with --kernels skipdec, which keep such weights as they are",
        )

    @cache
    def layers(capacity: int | None) -> Sequence[EngineSession]:
        """Return the layers' sessions for one static KV capacity, or for any (None)."""
        return [
            backend.load(
                bundle,
                layer,
                next((one for one in layer.buckets if one.capacity == capacity), None),
            )
            for layer in manifest.layers
        ]

    unchecked = (spec for spec in manifest.all_engines if not backend.hashes_weights(spec))
    with bundle.weights_checked(unchecked):
        embed, head = backend.load(bundle, manifest.embed), backend.load(bundle, manifest.head)
        drafts = DraftEngines(bundle, backend) if manifest.draft_engines else None
        if backend.device is None:
            return HostStitcher(embed, layers(None), head, max_rows, drafts)
        if manifest.candidates is None:
            raise BundleError(
                str(bundle.path),
                "has no engine for candidates, which devices need; export it again",
            )
        buckets = manifest.layers[0].buckets
        layers(buckets[0].capacity if buckets else None)
        return DeviceStitcher(
            cast(DeviceMemory, backend.memory),
            embed,
            layers,
            head,
            backend.load(bundle, manifest.candidates),
            max_rows,
            padded_rows,
            drafts,
            partial(backend.load_choice, bundle, manifest.candidates),
        )


@dataclass(frozen=True, eq=False)
class _Holder:
    """A thread that holds the engines, or waits for them."""

    thread: int
    lasts: bool


class EngineLock:
    """Engines and their KV memory, held by one call at a time and used one step at a time.

    Calls of other threads wait for the holder (`hold`). A holder may pause between two steps for
    any time, like a stream that nobody reads; `close` waits only for a running step. After `close`
    the holder's next step raises ClosedError. Any thread may call any method.

    This object owns ``backend`` and ``pool``.
    """

    def __init__(self, stitcher: Stitcher, backend: EngineBackend, pool: BufferPool) -> None:
        self.pool = pool
        pool.on_free = self._forget
        self._stitcher: Stitcher | None = stitcher
        self._backend = backend
        self._slots: SlotStitcher | None = None  # the holder's
        self._planned_bytes = 0
        self._is_closed = False
        self._home = HomeProcess("Generator", "open a generator here")
        self._changed = Condition()  # guards all other attributes
        self._stepping: int | None = None  # the thread that runs a step
        self._holder: _Holder | None = None
        self._queue: deque[_Holder] = deque()  # threads that wait to hold the engines

    @property
    def device(self) -> Device | None:
        """The device that the engines run on; None for the CPU."""
        return self._backend.device

    @property
    def clock(self) -> Callable[[], float]:
        """The clock for costs of passes, in seconds.

        On the CPU it is this thread's processor time, which other processes do not affect.
        """
        return thread_time if self.device is None else perf_counter

    @property
    def kv_memory(self) -> KVMemory:
        """The KV-cache memory of the last call: planned against actual."""
        return KVMemory(
            limit=self.pool.limit,
            planned=self._planned_bytes if self._slots is None else self._slots.planned_bytes,
            peak=self.pool.peak_bytes,
            held=self.pool.idle_bytes,
        )

    @contextmanager
    def hold(
        self,
        slots: SlotStitcher | None = None,
        *,
        planned_bytes: int = 0,
        lasts: bool = False,
    ) -> Iterator[None]:
        """Hold the engines for a call until the block ends, which closes its ``slots``.

        Calls of other threads wait in order of arrival. ``planned_bytes`` is the KV memory that a
        call without slots plans to use. A call that ``lasts``, like a running batch, may never end,
        so nobody waits for it.

        Raises ClosedError; SkipDecError in a forked child, and if waiting might never end because
        the holder is this thread or ``lasts``.
        """
        self.require_usable()
        holder = _Holder(get_ident(), lasts)
        with self._changed:
            self._wait_for_turn(holder)
            self._holder = holder
            self._slots = slots
            self._planned_bytes = planned_bytes
            self.pool.reset_peak()
        failed = False
        try:
            yield
        except SkipDecError:
            failed = True
            raise
        finally:
            if not self._home.is_left:
                with self._changed:
                    self._close_slots()
                    self.pool.end_call()
                    if failed and self.device is not None:
                        self.pool.trim()  # attention on a device would read NaN of a failed call
                    self._holder = None
                    self._changed.notify_all()

    @contextmanager
    def step(self) -> Iterator[Stitcher]:
        """Run a step in a block in which nothing is freed; don't keep the stitcher after it.

        Raises ClosedError, also while the interpreter exits, SkipDecError in a forked child, and
        CapacityError if the block runs out of memory.
        """
        self.require_usable()  # a fork may have inherited the lock in a locked state
        with NATIVE_WORK, self.unfreed():
            try:
                yield self.require_usable()
            except MemoryError as error:
                raise CapacityError(
                    "memory of this machine",
                    "a step needs more than can be had; lower max_batch_size or kv_memory, or use "
                    "shorter prompts",
                ) from error

    @contextmanager
    def unfreed(self) -> Iterator[None]:
        """Delay `close` until the end of the block.

        If another thread calls `close`, it waits for the end of the block. A block after `close`
        still runs, on closed slots.
        """
        if self._home.is_left:
            yield
            return
        with self._changed:
            outer, self._stepping = self._stepping, get_ident()
        try:
            yield
        finally:
            with self._changed:
                self._stepping = outer
                if self._is_closed and outer is None:
                    self._free()
                self._changed.notify_all()

    def trim(self) -> None:
        """Free memory that no call uses."""
        if not self._home.is_left:
            with self._between_steps():
                self.pool.trim()
                if self._slots is None and self._stitcher is not None:
                    self._stitcher.trim()

    def close(self) -> None:
        """Free everything once no step is running; idempotent.

        Inside a step (in a signal handler) it returns at once, and the step frees everything when
        it ends. In a forked child it does nothing, because the memory belongs to the parent.
        """
        if self._home.is_left:
            return
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()  # wakes waiting calls, which then raise ClosedError
        with self._between_steps() as may_free:
            if may_free:
                self._free()

    def load_drafts(self, draft: DraftConfig) -> None:
        """Load the engines that only these drafts run. Raises as the backend's ``load``."""
        drafts = self.require_usable().drafts
        if drafts is not None and draft.runs_layers:
            drafts.load(layer=draft.uses_draft_layer)

    def require_usable(self) -> Stitcher:
        """Return the stitcher. Raises ClosedError, or SkipDecError in a forked child."""
        self._home.require()
        if self._is_closed or self._stitcher is None:
            raise ClosedError("Generator", "is closed; open the bundle again")
        return self._stitcher

    def holds(self, slots: SlotStitcher) -> bool:
        """Return whether the call that holds the engines has these slots and they are open."""
        return self._slots is slots

    def require_held(self, slots: SlotStitcher) -> None:
        """Raise ClosedError after the call with these slots has ended, and as `require_usable`."""
        self.require_usable()
        if not self.holds(slots):
            raise ClosedError("running batch", "is closed; open another")

    def _wait_for_turn(self, holder: _Holder) -> None:
        self._require_end_of_wait(holder)
        self._queue.append(holder)
        try:
            self._changed.wait_for(
                lambda: (
                    self._is_closed
                    or (self._queue[0] is holder if self._holder is None else self._holder.lasts)
                )
            )
            self.require_usable()
            self._require_end_of_wait(holder)
        finally:
            self._queue.remove(holder)
            self._changed.notify_all()

    def _require_end_of_wait(self, waiting: _Holder) -> None:
        """Raise SkipDecError if the present holder may never release the engines."""
        holder = self._holder
        if holder is not None and holder.thread == waiting.thread:
            raise SkipDecError(
                "Generator",
                "is busy in this very thread: a running batch or a stream is open, or a call waits "
                "for this function; end it first, or open a second generator",
            )
        if holder is not None and holder.lasts:
            raise SkipDecError(
                "Generator",
                "is busy: a running batch holds it; send requests to the batch, close it, or open "
                "a second generator",
            )

    @contextmanager
    def _between_steps(self) -> Iterator[bool]:
        """Hold off steps once none runs; yield False if this thread is itself running one."""
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

    def _forget(self, memory: Buffer) -> None:
        if self._stitcher is not None:
            self._stitcher.forget(memory)

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


def make_slots(
    stitcher: Stitcher, pool: BufferPool, memory: SlotMemory, *, keeps_prefixes: bool = False
) -> SlotStitcher:
    """Create slots in memory of ``pool`` for rows that run on the engines of ``stitcher``.

    On the host, ``keeps_prefixes`` adds a `PrefixCache`.
    """
    if isinstance(stitcher, DeviceStitcher):
        return DeviceSlotStitcher(stitcher, device_slot_cache(pool, memory), pool)
    prefixes = PrefixCache(pool, memory.layout, memory.num_layers) if keeps_prefixes else None
    cache = SlotCache(pool, memory)
    return HostSlotStitcher(cast(HostStitcher, stitcher), cache, pool, prefixes)
