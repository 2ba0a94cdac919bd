"""Services keep one contract, whether a thread or a process runs the engine."""

from __future__ import annotations

import asyncio
import math
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import steered_worker
from http_servers import held_steps
from workers import LONG, SHORT, settings, steered

from skipdec import (
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
from skipdec.runtime.serving.service import EngineService

pytestmark = pytest.mark.slow  # half of these tests start a process

PROMPTS = [[5, 6, 7], [8, 9], [10, 11, 12, 13], [5, 9]]
SCHEDULES = (None, "full", "linear:max=4,min=2,warmup=1,horizon=4")

Opener = Callable[..., Any]


@pytest.fixture(params=["AsyncEngine", "ProcessEngine"])
def opened(request: pytest.FixtureRequest, bundle: Path) -> Opener:
    """Open the bundle as a service of two rows; a prompt can steer the worker of a process."""

    @asynccontextmanager
    async def context(**options: object) -> AsyncIterator[EngineService]:
        async with (
            AsyncEngine.open(bundle, settings(bundle, **options))
            if request.param == "AsyncEngine"
            else steered(bundle, **options) as engine,
            asyncio.timeout(240),
        ):
            yield engine

    return context


def with_service(
    opener: Opener, use: Callable[[Any], Coroutine[Any, Any, Any]], **options: object
) -> Any:  # noqa: ANN401  (what ``use`` returns)
    async def main() -> object:
        async with opener(**options) as engine:
            return await use(engine)

    return asyncio.run(main())


def texts(outputs: list[RequestOutput]) -> list[tuple[object, ...]]:
    """Return all fields of outputs except times and ids."""
    return [
        (
            output.prompt_token_ids,
            output.schedule,
            *((one.token_ids, one.layers_per_token, one.logprobs) for one in output.outputs),
        )
        for output in outputs
    ]


def test_texts_streams_and_scores_equal_the_generators(opened: Opener, bundle: Path) -> None:
    params = SamplingParams(n=2, seed=3, max_tokens=6, logprobs=2)

    async def use(engine: EngineService) -> list[Any]:
        found: list[Any] = []
        for schedule in SCHEDULES:
            calls = (engine.generate(one, params, schedule=schedule) for one in PROMPTS)
            found.append(texts(await asyncio.gather(*calls)))
        stats = engine.stats()
        assert (stats.finished, stats.requests) == (len(PROMPTS) * len(SCHEDULES), 0)
        async with engine.submit(PROMPTS[0], SHORT) as stream:
            tokens = [token async for delta in stream for token in delta.token_ids]
        assert tuple(tokens) == (await stream.output()).outputs[0].token_ids
        return [*found, await engine.score([5, 6, 7], [8, 9])]

    *found, score = with_service(opened, use)
    with Generator.open(bundle, threads=1) as generator:
        for schedule, one in zip(SCHEDULES, found, strict=True):
            assert one == texts(generator.generate(PROMPTS, params, schedule=schedule))
        (expected,) = generator.score([[5, 6, 7]], [[8, 9]])
    assert score.logprobs == pytest.approx(expected.logprobs)


def test_leaving_a_stream_frees_slots_and_draining_refuses_requests(opened: Opener) -> None:
    async def use(engine: EngineService) -> None:
        with held_steps():  # holds a thread's steps; HOLD keeps a worker's text running
            async with engine.submit([steered_worker.HOLD], LONG) as stream:
                await anext(stream)
        assert (await stream.output()).outputs[0].finish_reason == "abort"
        await engine.abort("never seen")
        last = engine.submit(PROMPTS[1], LONG)
        assert not await engine.drain(timeout=0)
        with pytest.raises(ClosedError, match="draining"):
            engine.submit([5], SHORT)
        assert await engine.drain(timeout=60)
        assert (await last.output()).outputs[0].finish_reason == "length"
        assert engine.stats().reserved_bytes == engine.stats().running == 0

    with_service(opened, use)


def test_an_invalid_request_is_refused_before_it_is_queued(opened: Opener) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"client": 7}, r"client \| is 7; allowed: a text"),
        ({"client": "a\ud800"}, r"client \| .*surrogate"),
        ({"request_id": 7}, r"request_id \| is 7; allowed: a text"),
        ({"request_id": "a\ud800"}, r"request_id \| .*surrogate"),
    ]

    async def use(engine: EngineService) -> None:
        for names, problem in refused:
            with pytest.raises(UsageError, match=problem):
                engine.submit(PROMPTS[0], SHORT, **names)
        with pytest.raises(UsageError, match="allowed: a SamplingParams"):
            engine.submit(PROMPTS[0], {"max_tokens": 2})  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="no tokens"):
            engine.submit([], SHORT)
        with pytest.raises(SkipDecError, match="schedule"):
            engine.submit([5], SHORT, schedule="3y")
        with pytest.raises(CapacityError, match=r"^n \| is 3; "):
            engine.submit([5], SamplingParams(n=3, max_tokens=2))
        assert engine.stats().waiting == 0
        stream = engine.submit([5], SHORT, request_id="a")
        with pytest.raises(UsageError, match="'a' is in use"):
            engine.submit([5], SHORT, request_id="a")
        assert (await stream.output()).finished

    with_service(opened, use)


def test_deadlines_end_running_and_waiting_requests(opened: Opener) -> None:
    async def use(engine: EngineService) -> None:
        deadlines = (0.0, 0.0, 0.0, -1.0)
        calls = [engine.generate(PROMPTS[0], LONG, deadline=one) for one in deadlines]
        ended = [output.outputs[0] for output in await asyncio.gather(*calls)]
        assert {(one.finish_reason, one.stop_reason) for one in ended} == {("abort", "deadline")}
        with pytest.raises(TimeoutError):
            await engine.score([5], [6], deadline=0.0)
        with pytest.raises(UsageError, match=r"deadline \| is nan; allowed: seconds"):
            engine.submit(PROMPTS[0], LONG, deadline=math.nan)
        with pytest.raises(UsageError, match=r"deadline \| is 10+….*; allowed: seconds"):
            engine.submit(PROMPTS[0], LONG, deadline=10**400)
        with pytest.raises(UsageError, match=r"deadline \| is '5'; allowed: seconds"):
            engine.submit(PROMPTS[0], LONG, deadline="5")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=r"timeout \| is nan"):
            await engine.drain(math.nan)
        assert (await engine.generate(PROMPTS[0], SHORT)).finished  # the service is not draining

    with_service(opened, use)


def test_a_request_that_never_fits_is_refused(opened: Opener) -> None:
    async def use(engine: EngineService) -> None:
        with pytest.raises(CapacityError, match="kv_memory allows 40,000"):
            engine.submit([5], SHORT)

    with_service(opened, use, kv_memory=40_000)


def test_too_many_waiting_requests_are_refused_and_closing_ends_all(opened: Opener) -> None:
    accepted: list[RequestStream] = []

    async def use(engine: EngineService) -> None:
        with pytest.raises(OverloadedError) as refused:
            accepted.extend(engine.submit(PROMPTS[0], LONG) for _ in range(9))
        assert refused.value.retry_after >= 1
        for stream in accepted:
            assert (await stream.output()).finished
        accepted[:] = [engine.submit(PROMPTS[0], LONG) for _ in range(2)]

    async def main() -> None:
        async with opened(max_waiting=2) as engine:
            await use(engine)
        with pytest.raises(ClosedError):
            await accepted[-1].output()

    asyncio.run(main())


def test_draining_a_closed_service_keeps_its_reason(opened: Opener) -> None:
    async def use(engine: EngineService) -> None:
        await asyncio.to_thread(engine.close)
        assert await engine.drain()
        assert engine.refusal == "is closed"

    with_service(opened, use)


def test_several_event_loops_share_a_service(opened: Opener, bundle: Path) -> None:
    found: list[tuple[int, ...]] = []

    async def use(engine: EngineService) -> None:
        async def ask() -> None:
            for _ in range(3):
                found.append((await engine.generate(PROMPTS[2], SHORT)).outputs[0].token_ids)

        threads = [Thread(target=lambda: asyncio.run(ask())) for _ in range(4)]
        for thread in threads:
            thread.start()
        await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads))

    with_service(opened, use)
    with Generator.open(bundle, threads=1) as generator:
        (expected,) = generator.generate([PROMPTS[2]], SHORT)
    assert found == [expected.outputs[0].token_ids] * 12


def errors_in_a_fork(engine: EngineService) -> list[str]:
    """Collect the errors of each use in a forked child, which closes the engine at the end."""
    uses: tuple[Callable[[], object], ...] = (
        lambda: engine.submit([5], SHORT),
        lambda: engine.score([5], [6]).send(None),  # type: ignore[attr-defined]
        lambda: engine.abort("a").send(None),  # type: ignore[attr-defined]
        lambda: engine.drain().send(None),  # type: ignore[attr-defined]
        engine.stats,
    )
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # kills a hung child, which fails the test
        try:
            for use in uses:
                try:
                    use()
                except SkipDecError as error:
                    os.write(writer, f"{error}\n".encode())
            os.write(writer, f"{engine.refusal}\n".encode())
            engine.close()
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as errors:
        lines = errors.read().splitlines()
    assert os.waitpid(child, 0) == (child, 0)
    return lines


def test_a_fork_is_refused_and_does_not_disturb_its_parent(opened: Opener) -> None:
    async def use(engine: EngineService) -> None:
        before = await engine.generate([5, 6], SHORT)
        errors = errors_in_a_fork(engine)
        assert len(errors) == 6
        assert all("is a fork" in line for line in errors)
        assert errors[0].startswith(type(engine).__name__)
        after = await engine.generate([5, 6], SHORT)
        assert after.outputs[0].token_ids == before.outputs[0].token_ids

    with_service(opened, use)
