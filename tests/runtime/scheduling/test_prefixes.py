"""Prompts skip prefixes that an earlier prompt computed, and write the same texts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from random_requests import run_all

from skipdec import Generator, SamplingParams, UsageError
from skipdec.engines.backends.ort import OrtBinding
from skipdec.engines.errors import DeviceError
from skipdec.engines.memory import HostMemory
from skipdec.runtime.kv.buffers import BufferPool, KVLayout
from skipdec.runtime.kv.prefixes import BLOCK_TOKENS, PrefixCache, restore
from skipdec.runtime.opening import PrefixSharing
from skipdec.runtime.requests.score_request import make_score_requests
from skipdec.runtime.scheduling.running_batch import RunningBatch
from skipdec.runtime.scheduling.scoring import Scorer
from skipdec.runtime.tokens.outputs import RequestOutput

PARAMS = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
SYSTEM = [random.Random(1).randrange(4, 90) for _ in range(2 * BLOCK_TOKENS + 5)]


@pytest.fixture(scope="module", params=["skipdec", "onnxruntime"])
def generator(request: pytest.FixtureRequest, exported: Callable[..., Path]) -> Iterator[Generator]:
    bundle = exported("pre_norm", quantize="int8", kernels=request.param)
    with Generator.open(bundle, threads=1, max_batch_size=4) as generator:
        yield generator


def run(
    engine: RunningBatch, prompts: list[list[int]], schedule: str = "full"
) -> list[RequestOutput]:
    numbers = [engine.add(prompt, PARAMS, schedule=schedule) for prompt in prompts]
    while engine.is_busy:
        engine.step()
    return [engine.take(number) for number in numbers]


def tokens(outputs: list[RequestOutput]) -> list[tuple[int, ...]]:
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("schedule", ["full", "linear:max=5,min=2,horizon=12"])
def test_a_hit_and_a_miss_give_equal_tokens(generator: Generator, schedule: str) -> None:
    prompts = [[*SYSTEM, 7, 8, number] for number in range(4, 9)]
    with generator.running_batch(prefix_cache=False) as engine:
        expected = tokens(run(engine, prompts, schedule))
        assert engine.stats().prefix_tokens == engine.stats().prefix_bytes == 0
    with generator.running_batch() as engine:
        first = tokens(run(engine, prompts[:1], schedule))
        assert engine.stats().prefix_tokens == 0
        later = tokens(run(engine, prompts[1:], schedule))
        stats = engine.stats()
    assert first + later == expected
    assert stats.prefix_tokens == 4 * 2 * BLOCK_TOKENS
    assert stats.prefix_bytes > 0 == stats.reserved_bytes


@pytest.mark.parametrize(
    ("sharing", "hits"), [("shared", 4), (True, 4), ("client", 2), ("off", 0), (False, 0)]
)
def test_clients_share_prefixes_only_where_allowed(
    generator: Generator, sharing: PrefixSharing | bool, hits: int
) -> None:
    prompts = [[*SYSTEM, 7, 8, number] for number in range(4, 9)]
    expected = tokens(generator.generate(prompts, PARAMS, schedule="full"))
    found = []
    with generator.running_batch(prefix_cache=sharing) as engine:
        for prompt, client in zip(prompts, ["a", "b", "a", "b", ""], strict=True):
            number = engine.add(prompt, PARAMS, schedule="full", client=client)
            run_all(engine)
            found.append(engine.take(number))
        hit_tokens = engine.stats().prefix_tokens
    assert tokens(found) == expected
    assert hit_tokens == hits * 2 * BLOCK_TOKENS


def test_an_unknown_sharing_is_refused_with_the_allowed_ones(generator: Generator) -> None:
    with (
        pytest.raises(UsageError, match="'shared', 'client' or 'off'"),
        generator.running_batch(prefix_cache="own"),  # type: ignore[arg-type]
    ):
        pass


def test_a_hit_extends_the_cached_prefix(generator: Generator) -> None:
    longer = [*SYSTEM, *range(4, 4 + BLOCK_TOKENS)]
    with generator.running_batch() as engine:
        run(engine, [[*SYSTEM, 7], longer, [*longer, 9]])
        run(engine, [longer])
        before = engine.stats().prefix_tokens
        run(engine, [[*longer, 11]])
        assert engine.stats().prefix_tokens - before == 3 * BLOCK_TOKENS


def test_a_prompt_that_skips_layers_shares_nothing(generator: Generator) -> None:
    """A layer's cache then depends on where the prompt ends."""
    decay = "linear:max=4,min=2,horizon=5,prompt=decay"
    prompts = [[*SYSTEM, 7], [*SYSTEM, 9, 10]]
    with generator.running_batch() as engine:
        results = [run(engine, [prompt], decay)[0] for prompt in prompts]
        assert engine.stats().prefix_tokens == 0
    assert tokens(results) == tokens(generator.generate(prompts, PARAMS, schedule=decay))


def test_a_failed_prompt_caches_no_prefix(
    generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [[*SYSTEM, 7]]
    expected = tokens(generator.generate(prompts, PARAMS, schedule="full"))
    with generator.running_batch() as engine:
        with monkeypatch.context() as patch:
            patch.setattr(OrtBinding, "run", _fails)
            assert run(engine, prompts)[0].outputs[0].finish_reason == "error"
        assert engine.stats().prefix_bytes == 0
        assert tokens(run(engine, prompts)) == expected


def _fails(self: object) -> None:
    raise DeviceError("layer 0", "fails")


def test_prefixes_are_evicted_for_running_rows(exported: Callable[..., Path]) -> None:
    bundle = exported("pre_norm", quantize="int8", kernels="auto")
    draw = random.Random(3)
    prompts = [[draw.randrange(4, 90) for _ in range(3 * BLOCK_TOKENS)] for _ in range(12)]
    with Generator.open(bundle, threads=1, max_batch_size=4, kv_memory=700_000) as generator:
        expected = tokens(generator.generate(prompts, PARAMS, schedule="full"))
        with generator.running_batch() as engine:
            assert tokens(run(engine, prompts * 2)) == expected * 2
            assert 0 < engine.stats().prefix_bytes <= 700_000 // 4
            assert generator.kv_memory.peak <= 700_000


def test_a_prompt_that_evicts_its_own_prefix_runs_in_full(
    exported: Callable[..., Path],
) -> None:
    bundle = exported("pre_norm", quantize="int8", kernels="auto")
    prompt, two = SYSTEM + SYSTEM[:20], SamplingParams(n=2, max_tokens=6)
    with Generator.open(bundle, threads=1, max_batch_size=2) as generator:
        schedule = generator.resolve_schedule("full", max_tokens=6)
        with generator.running_batch() as engine:
            row = engine.memory.prompt_row(tuple(prompt), schedule, 6, range(2))
            needed = engine.memory.alone(row, in_chunks=True)
    with (
        Generator.open(bundle, threads=1, max_batch_size=2, kv_memory=needed) as generator,
        generator.running_batch(max_prefill_tokens=16) as engine,
    ):
        run(engine, [SYSTEM])
        assert engine.stats().prefix_bytes
        engine.add(prompt, two, schedule="full")
        calls = 0
        while not engine.stats().running:
            engine.step()
            calls += 1
        assert engine.stats().prefix_tokens == 0
        assert calls == -(-len(prompt) // 16)


def test_prefixes_are_evicted_for_a_scored_text(exported: Callable[..., Path]) -> None:
    bundle = exported("pre_norm", quantize="int8", kernels="auto")
    draw = random.Random(3)
    prompts = [[draw.randrange(4, 90) for _ in range(3 * BLOCK_TOKENS)] for _ in range(4)]
    with Generator.open(bundle, threads=1, max_batch_size=4) as generator:
        (score,) = make_score_requests([prompts[0]], [[5] * 10], generator.model, None)
        most = Scorer(generator._loaded).nbytes(score)
    with (
        Generator.open(bundle, threads=1, max_batch_size=1, kv_memory=200_000) as generator,
        generator.running_batch() as engine,
    ):
        run(engine, prompts)
        cached = engine.stats().prefix_bytes
        generator._engines.pool.limit = cached + most - 1  # as if rows held the rest
        engine.scoring.run(score, generator.resolve_schedule("full", max_tokens=10), start=0.0)
        assert 0 <= engine.stats().prefix_bytes < cached


LAYOUT = KVLayout(2, 4, "float32")


def record(cache: PrefixCache, prompt: list[int], value: float) -> None:
    shape = (1, 2, len(prompt), 4)
    pair = np.full(shape, value, np.float32), np.full(shape, -value, np.float32)
    recording = cache.record(prompt)
    for layer in range(3):
        recording.copy(layer, pair, 0)
    recording.commit()


def test_prefix_blocks_are_evicted_lru_after_their_successors() -> None:
    pool = BufferPool(HostMemory(), 10**9)
    cache = PrefixCache(pool, LAYOUT, 3)
    cache.set_limit(10**9)
    first, second = [5] * 2 * BLOCK_TOKENS, [6] * 2 * BLOCK_TOKENS
    record(cache, first, 1.0)
    record(cache, second, 2.0)
    one = cache.nbytes // 4
    assert len(cache.find([*first, 9])) == 2
    cache.set_limit(3 * one)
    assert (len(cache.find([*first, 9])), len(cache.find([*second, 9]))) == (2, 1)
    assert pool.in_use_bytes == cache.nbytes == 3 * one
    cache.clear()
    assert pool.in_use_bytes == 0


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_block_stays_while_one_after_it_is_recorded(is_kept: bool) -> None:
    """Else nothing would find the recorded block, which would hold memory until it is evicted."""
    cache = PrefixCache(BufferPool(HostMemory(), 10**9), LAYOUT, 3)
    cache.set_limit(10**9)
    first, other = [5] * BLOCK_TOKENS, [6] * BLOCK_TOKENS
    record(cache, first, 1.0)
    cache.set_limit(2 * cache.nbytes)
    recording = cache.record(2 * first)
    record(cache, other, 2.0)
    assert not cache.find([*other, 9])
    if is_kept:
        recording.commit()
        assert len(cache.find([*first, *first, 9])) == 2
    else:
        recording.give_up()
        record(cache, 2 * other, 2.0)
        assert len(cache.find([*other, *other, 9])) == 2, "in place of the first block"


def test_out_of_memory_truncates_a_prefix_without_an_error() -> None:
    pool = BufferPool(HostMemory(), 10**9)
    cache = PrefixCache(pool, LAYOUT, 3)
    cache.set_limit(10**9)
    record(cache, [5] * BLOCK_TOKENS, 1.0)
    pool.limit = 2 * cache.nbytes
    record(cache, [6] * 3 * BLOCK_TOKENS, 1.0)
    assert len(cache.find([6] * 4 * BLOCK_TOKENS)) == 1
    cache.clear()
    assert pool.in_use_bytes == 0


def test_a_restored_prefix_equals_the_recorded_one() -> None:
    cache = PrefixCache(BufferPool(HostMemory(), 10**9), LAYOUT, 3)
    cache.set_limit(10**9)
    record(cache, [5] * (BLOCK_TOKENS + 3), 1.5)
    key, value = (np.zeros((1, 2, 50, 4), np.float32) for _ in range(2))
    restore(cache.find([5] * 50), 1, (key, value))
    assert (key[:, :, :BLOCK_TOKENS] == 1.5).all()
    assert (value[:, :, :BLOCK_TOKENS] == -1.5).all()
    assert not key[:, :, BLOCK_TOKENS:].any()


def test_a_found_prefix_leaves_the_last_token_to_run() -> None:
    cache = PrefixCache(BufferPool(HostMemory(), 10**9), LAYOUT, 3)
    cache.set_limit(10**9)
    record(cache, [5] * 2 * BLOCK_TOKENS, 1.0)
    assert len(cache.find([5] * 2 * BLOCK_TOKENS)) == 1


def test_without_a_limit_no_prefix_is_cached() -> None:
    cache = PrefixCache(BufferPool(HostMemory(), 10**9), LAYOUT, 3)
    record(cache, [5] * 2 * BLOCK_TOKENS, 1.0)
    assert cache.nbytes == 0
    assert cache.find([5] * 2 * BLOCK_TOKENS) == []
