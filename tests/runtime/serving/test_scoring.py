"""An AsyncEngine scores texts between steps, and can cancel or refuse them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
from http_servers import held_steps

from skipdec import (
    CapacityError,
    ClosedError,
    Generator,
    SamplingParams,
    SkipDecError,
    UsageError,
)
from skipdec.engines.backends.ort import OrtBinding
from skipdec.runtime.requests.score_request import ScoreRequest
from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.scheduling.running_batch import RunningBatch
from skipdec.runtime.scheduling.scoring import BatchScoring, ScoringTurns
from skipdec.runtime.serving.async_engine import AsyncEngine
from skipdec.runtime.tokens.outputs import ScoreOutput, StreamDelta

LONG = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
NEXT = SamplingParams(temperature=0, max_tokens=1)
TEXT = [5, 6, 7, 8, 9, 10, 11]
DECAYING = "linear:max=4,min=2,horizon=4,prompt=decay"


def with_engine(bundle: Path, main: Callable[[AsyncEngine], object], **options: object) -> None:
    async def run() -> None:
        settings = {"threads": 1, "max_batch_size": 2} | options
        async with AsyncEngine.open(bundle, **settings) as engine:  # type: ignore[arg-type]
            async with asyncio.timeout(120):
                await main(engine)  # type: ignore[misc]

    asyncio.run(run())


@pytest.mark.parametrize("schedule", ["full", "2x", DECAYING])
def test_scores_beside_running_texts_equal_the_generators(bundle: Path, schedule: str) -> None:
    async def main(engine: AsyncEngine) -> None:
        texts = asyncio.gather(*(engine.generate(TEXT[:index], LONG) for index in (1, 2, 3)))
        scores = [engine.score(TEXT[:3], TEXT[3:], schedule=schedule) for _ in range(4)]
        assert await asyncio.gather(*scores) == [expected] * 4
        assert [one.outputs[0].token_ids for one in await texts] == alone
        stats = engine.stats()
        assert (stats.submitted, stats.finished) == (7, 7)

    with Generator.open(bundle, threads=1) as generator:
        (expected,) = generator.score([TEXT[:3]], [TEXT[3:]], schedule=schedule)
        prompts = [TEXT[:index] for index in (1, 2, 3)]
        alone = [one.outputs[0].token_ids for one in generator.generate(prompts, LONG)]
    with_engine(bundle, main)


@pytest.mark.parametrize("schedule", ["full", "2x", DECAYING])
def test_a_prompt_is_scored_at_its_prompt_depths(bundle: Path, schedule: str) -> None:
    async def main(engine: AsyncEngine) -> None:
        scored = await engine.score(TEXT, schedule=schedule, top_logprobs=2, followed_by=NEXT)
        (alone,) = (await engine.generate(TEXT, NEXT, schedule=schedule)).outputs
        assert scored.following is not None
        assert scored.following.token_ids == alone.token_ids
        assert scored.following.layers_per_token == alone.layers_per_token
        assert scored.token_ids == tuple(TEXT[1:])
        depths = engine.generator.resolve_schedule(schedule, max_tokens=1).prompt_budget
        assert scored.layers_per_token == tuple(depths(i, len(TEXT)) for i in range(len(TEXT) - 1))
        assert scored.top_logprobs is not None
        for token, value, top in zip(TEXT[1:], scored.logprobs, scored.top_logprobs, strict=True):
            assert top[token].logprob == value
            assert max(top.values(), key=lambda one: one.logprob).rank == 1
            assert 2 <= len(top) <= 3
        if schedule == "full":
            (same,) = [await engine.score(TEXT[:1], TEXT[1:], schedule="full")]
            assert scored.logprobs == pytest.approx(same.logprobs, abs=1e-5)

    with_engine(bundle, main)


def test_a_step_runs_between_two_scored_texts(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    score, step = BatchScoring.run, RunningBatch.step

    def scored(
        self: BatchScoring, request: ScoreRequest, schedule: ExitSchedule, start: float
    ) -> ScoreOutput:
        done.append("score")
        return score(self, request, schedule, start)

    def decoded(self: RunningBatch) -> list[StreamDelta]:
        if self.running_rows:
            done.append("decode")
        return step(self)

    async def main(engine: AsyncEngine) -> None:
        with held_steps() as held:
            text = asyncio.create_task(engine.generate(TEXT, LONG))
            while not held.is_set():
                await asyncio.sleep(0)
            scores = [asyncio.create_task(engine.score(TEXT)) for _ in range(5)]
            await asyncio.sleep(0)
        await asyncio.gather(text, *scores)

    monkeypatch.setattr(BatchScoring, "run", scored)
    monkeypatch.setattr(RunningBatch, "step", decoded)
    with_engine(bundle, main)
    assert done.count("score") == 5
    while done[-1] == "score":  # the text has ended
        done.pop()
    assert ["score", "score"] not in [done[index : index + 2] for index in range(len(done))]


def test_texts_run_for_as_long_as_the_last_scoring_took() -> None:
    turns = ScoringTurns()
    assert turns.is_due(text_seconds=5.0, steps=9, running=True)
    turns.scored(2.0, text_seconds=5.0, steps=9)
    assert not turns.is_due(text_seconds=6.9, steps=11, running=True)
    assert turns.is_due(text_seconds=7.0, steps=11, running=True)
    turns.scored(0.0, text_seconds=7.0, steps=11)
    assert not turns.is_due(text_seconds=7.0, steps=11, running=True)  # running texts come first
    assert turns.is_due(text_seconds=7.0, steps=11, running=False)


def test_time_to_first_token_after_scoring_includes_the_wait(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = BatchScoring.run

    def late(self: BatchScoring, *arguments: Any) -> ScoreOutput:  # noqa: ANN401
        sleep(0.2)
        return run(self, *arguments)

    async def main(engine: AsyncEngine) -> None:
        scored = await engine.score(TEXT, followed_by=NEXT)
        assert scored.following is not None
        assert scored.following.timings is not None
        assert scored.following.timings.time_to_first_token >= 0.2

    monkeypatch.setattr(BatchScoring, "run", late)
    with_engine(bundle, main)


def test_clients_take_turns_at_scoring(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    score = BatchScoring.run

    def scored(
        self: BatchScoring, request: ScoreRequest, schedule: ExitSchedule, start: float
    ) -> ScoreOutput:
        done.append(request.client)
        return score(self, request, schedule, start)

    async def main(engine: AsyncEngine) -> None:
        with held_steps() as held:
            text = asyncio.create_task(engine.generate(TEXT, LONG))
            while not held.is_set():
                await asyncio.sleep(0)
            scores = [asyncio.create_task(engine.score(TEXT, client=one)) for one in "aaaab"]
            await asyncio.sleep(0)
        await asyncio.gather(text, *scores)

    monkeypatch.setattr(BatchScoring, "run", scored)
    with_engine(bundle, main)
    assert done == ["a", "b", "a", "a", "a"]


def test_a_scoring_ends_on_cancellation_timeout_or_abort(
    bundle: Path,
) -> None:
    async def main(engine: AsyncEngine) -> None:
        with held_steps() as held:
            running = asyncio.create_task(engine.generate(TEXT, LONG))
            while not held.is_set():
                await asyncio.sleep(0)
            cancelled = asyncio.create_task(engine.score(TEXT))
            late = asyncio.create_task(engine.score(TEXT, deadline=0.0))
            aborted = asyncio.create_task(engine.score(TEXT, request_id="mine"))
            await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.wait([cancelled])
            await engine.abort("mine")
        results = await asyncio.gather(cancelled, late, aborted, return_exceptions=True)
        kinds = [asyncio.CancelledError, TimeoutError, ClosedError]
        assert [type(one) for one in results] == kinds
        await running
        assert await engine.drain(10)
        stats = engine.stats()
        assert (stats.submitted, stats.finished, stats.aborted) == (4, 1, 3)

    with_engine(bundle, main)


def test_an_invalid_scoring_is_refused_before_it_waits(bundle: Path) -> None:
    async def main(engine: AsyncEngine) -> None:
        with pytest.raises(UsageError, match="no tokens"):
            await engine.score([])
        with pytest.raises(UsageError, match="no tokens"):
            await engine.score([5], [])
        for count in (-1, 1.5, "2", 10**5000):
            with pytest.raises(UsageError, match=r"is .*; allowed: 0 to \d+, or None"):
                await engine.score(TEXT, top_logprobs=count)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="max_tokens 30"):
            await engine.score(TEXT, followed_by=LONG)
        with pytest.raises(SkipDecError, match="schedule"):
            await engine.score(TEXT, schedule="3y")
        assert engine.stats().submitted == 0

    with_engine(bundle, main)


def test_a_text_beyond_kv_memory_is_refused(bundle: Path) -> None:
    async def main(engine: AsyncEngine) -> None:
        with pytest.raises(CapacityError, match="bytes of KV cache"):
            await engine.score([5] * 40)

    with_engine(bundle, main, kv_memory=4096)


def test_a_text_longer_than_max_model_len_is_refused(bundle: Path) -> None:
    async def main(engine: AsyncEngine) -> None:
        await engine.score(TEXT, followed_by=NEXT)
        await engine.score(TEXT[:5], TEXT[:3])
        with pytest.raises(CapacityError, match="has 9 positions; max_model_len allows 8"):
            await engine.score([5, *TEXT], followed_by=NEXT)
        with pytest.raises(CapacityError, match="has 9 positions; max_model_len allows 8"):
            await engine.score(TEXT[:5], TEXT[:4])

    with_engine(bundle, main, max_model_len=8)


def test_an_engine_failure_in_scoring_fails_only_that_text(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = BatchScoring.run

    def failing(
        self: BatchScoring, request: ScoreRequest, schedule: ExitSchedule, start: float
    ) -> ScoreOutput:
        with monkeypatch.context() as patch:
            patch.setattr(OrtBinding, "run", broken)
            return run(self, request, schedule, start)

    def broken(self: OrtBinding) -> None:
        raise SkipDecError("engine layer_001", "ONNX Runtime failed to run it")

    async def main(engine: AsyncEngine) -> None:
        running = asyncio.create_task(engine.generate(TEXT, LONG))
        monkeypatch.setattr(BatchScoring, "run", failing)
        with pytest.raises(SkipDecError, match="layer_001"):
            await engine.score(TEXT)
        assert (await running).outputs[0].finish_reason == "length"
        stats = engine.stats()
        assert (stats.submitted, stats.finished, stats.failed) == (2, 1, 1)

    with_engine(bundle, main)


def test_a_scored_text_waits_for_memory_of_running_requests(bundle: Path) -> None:
    async def main(engine: AsyncEngine) -> None:
        with held_steps() as held:
            running = asyncio.create_task(engine.generate(TEXT, LONG))
            while not held.is_set():
                await asyncio.sleep(0)
            reserved.append(engine.stats().reserved_bytes)
            scored = asyncio.create_task(engine.score(TEXT))
            await asyncio.sleep(0)
        await running
        assert np.isfinite((await scored).logprobs).all()
        assert engine.stats().failed == 0

    reserved = list[int]()
    with_engine(bundle, main)
    with_engine(bundle, main, kv_memory=reserved[0] + 1)  # not enough for both


def test_a_scored_text_that_waits_for_memory_is_not_starved(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, step = [0], RunningBatch.step

    def stepped(self: RunningBatch) -> list[StreamDelta]:
        deltas = step(self)
        running[0] = self.running_rows
        return deltas

    async def main(engine: AsyncEngine) -> None:
        with held_steps() as held:  # texts of different lengths
            lengths = [LONG.model_copy(update={"max_tokens": 4 + i % 3}) for i in range(12)]
            texts = [asyncio.create_task(engine.generate(TEXT, length)) for length in lengths]
            while not held.is_set():
                await asyncio.sleep(0)
            scored = asyncio.create_task(engine.score(TEXT))
            await asyncio.sleep(0)
        await scored
        assert sum(text.done() for text in texts) <= 2  # those that already ran
        await asyncio.gather(*texts)

    monkeypatch.setattr(RunningBatch, "step", stepped)
    monkeypatch.setattr(BatchScoring, "fits", lambda *_: running[0] == 0)
    with_engine(bundle, main)
