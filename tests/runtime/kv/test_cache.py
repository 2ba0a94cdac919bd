"""KV memory is planned exactly, pooled, shared by prompt-only layers and retired."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from skipdec.engines.errors import CapacityError
from skipdec.engines.manifest import DType
from skipdec.engines.memory import HostMemory
from skipdec.runtime.kv.buffers import BufferPool, CachePair, KVLayout, pooled_size
from skipdec.runtime.kv.cache import KVCache
from skipdec.runtime.kv.limits import Limits
from skipdec.runtime.kv.plans import KVPlan, PromptRow, SlotMemory
from skipdec.runtime.schedule import ExitSchedule

OF_EACH_TYPE = [  # heads of 64: elements per head, bytes of two heads
    ("float32", 64, 512),
    ("float16", 64, 256),
    ("bfloat16", 64, 256),
    ("int8", 68, 136),
]
LAYOUT = KVLayout(num_heads=2, width=4, dtype="float32")
MEMORY = SlotMemory(Limits(4, 400, kv_bytes=0), LAYOUT, num_layers=6, exact=True)


def worked_example() -> ExitSchedule:
    """Budgets 4 3 3 2 2 …: layers 0 and 5 always, 4 up to index 2, 3 at index 0 only."""
    return ExitSchedule(num_layers=6, max_exit_layer=4, min_exit_layer=2, horizon=4)


def prompt_row(schedule: ExitSchedule, length: int, max_tokens: int) -> PromptRow:
    return MEMORY.prompt_row((5,) * length, schedule, max_tokens, range(1))


def test_a_layers_capacity_ends_where_the_schedule_retires_it() -> None:
    row = prompt_row(worked_example(), 10, 8)
    assert row.capacities == (17, 0, 0, 11, 13, 17)
    plan = MEMORY.scratch_plan([row, prompt_row(worked_example(), 4, 20)])
    assert plan.sizes == ((2, 10),)


def test_one_token_needs_only_the_scratch_pair() -> None:
    row = prompt_row(ExitSchedule.full(6), 10, 1)
    assert row.capacities == (0,) * 6
    assert MEMORY.alone(row, in_chunks=False) == 2 * pooled_size(LAYOUT.nbytes(1, 10))


def test_full_depth_needs_no_scratch() -> None:
    row = prompt_row(ExitSchedule.full(6), 10, 8)
    assert row.capacities == (17,) * 6
    assert MEMORY.scratch_plan([row]).sizes == ()


@pytest.mark.parametrize("plan_of", [MEMORY.chunk_plan, lambda row: MEMORY.scratch_plan([row])])
def test_planned_bytes_match_the_pools_allocation(plan_of: Callable[[PromptRow], KVPlan]) -> None:
    plan = plan_of(prompt_row(worked_example(), 300, 80))
    pool = BufferPool(HostMemory(), limit=10**9)
    with KVCache(pool, plan):
        assert pool.in_use_bytes == plan.nbytes
    assert pool.in_use_bytes == 0
    assert pool.peak_bytes == plan.nbytes


def test_a_released_buffer_serves_the_next_call_of_its_size() -> None:
    pool = BufferPool(HostMemory(), limit=10**9)
    first = pool.acquire(100_000)
    pool.release(first)
    assert pool.acquire(99_000) is first


def test_idle_buffers_are_freed_to_stay_within_the_limit() -> None:
    pool = BufferPool(HostMemory(), limit=100_000)
    pool.release(pool.acquire(60_000))
    pool.acquire(90_000)
    assert pool.idle_bytes == 0
    with pytest.raises(CapacityError, match="limit of 100,000"):
        pool.acquire(20_000)


def test_a_cache_that_does_not_fit_keeps_no_memory() -> None:
    pool = BufferPool(HostMemory(), limit=3 * pooled_size(LAYOUT.nbytes(1, 1000)))
    with pytest.raises(CapacityError):
        KVCache(pool, KVPlan(LAYOUT, ((1, 1000), (1, 1000))))
    assert pool.in_use_bytes == 0


@pytest.mark.parametrize("error", [CapacityError("memory", "is full"), MemoryError(), OSError()])
@pytest.mark.parametrize("allocations", [0, 1, 2, 5])
def test_out_of_memory_releases_partial_allocations(error: Exception, allocations: int) -> None:
    class Small(HostMemory):
        left = allocations

        def allocate(self, nbytes: int) -> np.ndarray:
            self.left -= 1
            if self.left < 0:
                raise error
            return super().allocate(nbytes)

    pool = BufferPool(Small(), limit=10**6)
    with pytest.raises(type(error)):
        KVCache(pool, KVPlan(LAYOUT, ((1, 50), (1, 1000), (1, 500), (1, 100))))
    assert pool.in_use_bytes == 0


def test_a_call_of_another_size_keeps_idle_buffers() -> None:
    pool = BufferPool(HostMemory(), limit=10**9)
    first = [pool.acquire(100_000) for _ in range(4)]
    for buffer in first:
        pool.release(buffer)
    pool.reset_peak()
    pool.release(pool.acquire(10_000))
    assert pool.idle_bytes <= 4 * pooled_size(100_000)
    kept = [pool.acquire(100_000) for _ in range(3)]
    assert {id(buffer) for buffer in kept} <= {id(buffer) for buffer in first}


def test_idle_bytes_stay_within_their_limit() -> None:
    pool = BufferPool(HostMemory(), limit=10**6, least_idle=60_000)
    freed: list[object] = []
    pool.on_free = freed.append
    small, large = pool.acquire(10_000, "layer 0"), pool.acquire(20_000, "layer 1")
    for buffer, user in ((small, "layer 0"), (large, "layer 1")):
        pool.release(buffer, user)
    assert pool.acquire(20_000, "layer 0") is not large, "layer 1 keeps its own buffer"
    assert pool.acquire(10_000, "layer 0") is small
    assert freed == []
    pool.acquire(30_000)
    assert [id(one) for one in freed] == [id(large)], "at most 60,000 bytes stay idle"


def test_trim_frees_idle_buffers() -> None:
    pool = BufferPool(HostMemory(), limit=10**9)
    pool.release(pool.acquire(5000))
    pool.trim()
    assert pool.idle_bytes == 0


@pytest.mark.parametrize(("dtype", "width", "nbytes"), OF_EACH_TYPE)
def test_a_position_has_the_bytes_of_its_type(dtype: DType, width: int, nbytes: int) -> None:
    assert KVLayout(num_heads=2, width=width, dtype=dtype).nbytes(rows=3, capacity=5) == 15 * nbytes


@pytest.mark.parametrize(("dtype", "width", "nbytes"), OF_EACH_TYPE)
def test_copy_row_moves_written_positions(dtype: DType, width: int, nbytes: int) -> None:
    pool = BufferPool(HostMemory(), limit=10**9)
    pair = CachePair.acquire(pool, KVLayout(num_heads=2, width=width, dtype=dtype), 3, 5, "")
    key, value = pair.key, pair.value
    key[:], value[:] = 0, 0
    key[2], value[2] = 7, 8
    pair.copy_row(pool, source=2, target=0, length=3)
    assert (key[0, :, :3] == 7).all()
    assert (value[0, :, :3] == 8).all()
    assert (key[0, :, 3:] == 0).all()
    assert (key[1] == 0).all()


@pytest.mark.parametrize("nbytes", [1, 4096, 4097, 5120, 5121, 10**6, 2**30 + 1])
def test_size_classes_cost_at_most_a_quarter(nbytes: int) -> None:
    size = pooled_size(nbytes)
    assert size >= nbytes
    assert size <= max(4096, 1.25 * nbytes)
    assert pooled_size(size) == size
