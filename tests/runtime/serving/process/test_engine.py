"""A bundle in a worker process: the same texts, refusals and ends as in this one."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from steered_worker import STUCK
from workers import LONG, SHORT, settings, steered, until

from skipdec import (
    BundleError,
    CapacityError,
    ClosedError,
    Generator,
    OverloadedError,
    RequestOutput,
    RequestStream,
    SamplingParams,
    SkipDecError,
    UsageError,
)
from skipdec.runtime.serving.async_engine import AsyncEngine
from skipdec.runtime.serving.process.engine import ProcessEngine

pytestmark = pytest.mark.slow  # each starts a process

PROMPTS = [[5, 6, 7], [8, 9], [10, 11, 12, 13], [5, 9]]


def texts(outputs: list[RequestOutput]) -> list[tuple[object, ...]]:
    """All of them but times and names."""
    return [
        (
            output.prompt_token_ids,
            output.schedule,
            *((one.token_ids, one.layers_per_token, one.logprobs) for one in output.outputs),
        )
        for output in outputs
    ]


def test_texts_and_scores_are_those_of_an_engine_in_this_process(bundle: Path) -> None:
    params = SamplingParams(n=2, seed=3, max_tokens=6, logprobs=2)

    async def main() -> None:
        async with (
            steered(bundle) as theirs,
            AsyncEngine.open(bundle, threads=1, max_batch_size=2) as ours,
        ):
            for schedule in (None, "full", "linear:max=4,min=2,warmup=1,horizon=4"):
                outputs = [
                    await asyncio.gather(
                        *(one.generate(prompt, params, schedule=schedule) for prompt in PROMPTS)
                    )
                    for one in (theirs, ours)
                ]
                assert texts(outputs[0]) == texts(outputs[1])
            scores = [await one.score([5, 6, 7], [8, 9], top_logprobs=2) for one in (theirs, ours)]
            assert scores[0] == scores[1]
            assert theirs.inputs.model == ours.inputs.model
            found, expected = theirs.stats(), ours.stats()
            assert (found.finished, found.generated_tokens, found.layer_rows) == (
                expected.finished,
                expected.generated_tokens,
                expected.layer_rows,
            )

    asyncio.run(main())


def test_what_is_wrong_is_said_before_it_is_queued(bundle: Path) -> None:
    async def main() -> None:
        async with steered(bundle, kv_memory=40_000) as engine:
            with pytest.raises(UsageError, match="no tokens"):
                engine.submit([], SHORT)
            with pytest.raises(SkipDecError, match="schedule"):
                engine.submit([5], SHORT, schedule="3y")
            with pytest.raises(CapacityError, match="n 3"):
                engine.submit([5], SamplingParams(n=3, max_tokens=2))
            with pytest.raises(CapacityError, match="kv_memory allows 40,000"):
                engine.submit([5], LONG)
            assert engine.stats().waiting == 0

    asyncio.run(main())


def test_deadlines_end_what_runs_and_what_waits(bundle: Path) -> None:
    async def main() -> None:
        async with steered(bundle) as engine:
            outputs = await asyncio.gather(
                *(engine.generate(PROMPTS[0], LONG, deadline=0.0) for _ in range(4))
            )
            with pytest.raises(TimeoutError):
                await engine.score([5], [6], deadline=0.0)
        assert {one.outputs[0].stop_reason for one in outputs} == {"deadline"}
        assert {one.outputs[0].finish_reason for one in outputs} == {"abort"}

    asyncio.run(main())


def test_leaving_a_stream_frees_its_slots_in_the_worker(bundle: Path) -> None:
    async def main() -> None:
        async with steered(bundle) as engine:
            async with engine.submit(PROMPTS[0], LONG) as stream:
                await anext(stream)
            output = await stream.output()
            assert output.outputs[0].finish_reason in ("abort", "length")
            await engine.abort("never seen")
            assert await engine.drain(timeout=60)
            assert engine.stats().reserved_bytes == engine.stats().running == 0
            with pytest.raises(ClosedError, match="draining"):
                engine.submit([5], SHORT)

    asyncio.run(main())


def test_too_many_that_wait_are_refused_and_leaving_ends_all(bundle: Path) -> None:
    async def main() -> None:
        taken: list[RequestStream] = []
        async with steered(bundle, max_waiting=2) as engine:
            taken.append(engine.submit([STUCK], LONG))
            await anext(taken[0])
            with pytest.raises(OverloadedError) as refused:
                taken.extend(engine.submit([5], LONG) for _ in range(9))
            assert refused.value.retry_after >= 1
            assert len(taken) == 3
            with pytest.raises(UsageError, match="is in use"):
                engine.submit([5], SHORT, request_id=taken[0].request_id)
        for stream in taken:
            with pytest.raises(ClosedError):
                await stream.output()

    asyncio.run(main())


def test_a_step_that_hangs_is_seen_from_outside(bundle: Path) -> None:
    async def main() -> None:
        async with steered(bundle) as engine:
            assert engine.seconds_in_step == 0
            async with engine.submit([STUCK], LONG) as stream:
                await anext(stream)
                await until(lambda: engine.seconds_in_step > 0.2)
            assert engine.unready is None

    asyncio.run(main())


def test_a_clock_that_jumps_ends_nothing(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> RequestOutput:
        async with steered(bundle) as engine:
            stream = engine.submit([5], LONG, deadline=3600)
            for seconds in (4e9, 0.0):
                monkeypatch.setattr(time, "time", lambda now=seconds: now)
                await anext(stream)
            assert 0 <= engine.seconds_in_step < 60
            return await stream.output()

    assert asyncio.run(main()).outputs[0].finish_reason == "length"


def test_what_can_not_be_opened_is_told_by_its_own_error(bundle: Path, tmp_path: Path) -> None:
    async def opened(path: Path, **options: object) -> None:
        async with ProcessEngine.opened(settings(path, **options)):
            pass

    with pytest.raises(BundleError, match="is not a bundle"):
        asyncio.run(opened(tmp_path))
    with pytest.raises(SkipDecError, match="device"):
        asyncio.run(opened(bundle, device="cuda:99", threads=None))


def test_an_engine_that_is_closed_while_it_loads_leaves_no_process(bundle: Path) -> None:
    async def main() -> None:
        asked = settings(bundle)
        engine = ProcessEngine(asked, asked.inputs())
        await until(lambda: engine.worker_pid is not None)
        pid = engine.worker_pid
        await asyncio.to_thread(engine.close)
        assert not Path(f"/proc/{pid}").exists()
        assert not engine.loaded.done()

    asyncio.run(main())


def test_the_reference_is_the_generator(bundle: Path) -> None:
    async def main() -> RequestOutput:
        async with ProcessEngine.open(bundle, threads=1) as engine:
            return await engine.generate(PROMPTS[0], SHORT)

    with Generator.open(bundle, threads=1) as generator:
        assert texts([asyncio.run(main())]) == texts(generator.generate(PROMPTS[:1], SHORT))
