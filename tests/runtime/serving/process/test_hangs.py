"""Deadlines are kept while a worker hangs, and it learns of them once it resumes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from steered_worker import HOLD, STUCK
from workers import LONG, SHORT, steered, until

from skipdec import ClosedError, OverloadedError, SamplingParams, StreamDelta, UsageError
from skipdec.runtime.serving.process.engine import ProcessEngine

pytestmark = pytest.mark.slow  # each starts a process


@contextmanager
def stopped(engine: ProcessEngine) -> Iterator[None]:
    """Stop the worker within the block, as a debugger does."""
    pid = engine.worker_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        if engine.worker_pid == pid:
            os.kill(pid, signal.SIGCONT)


def test_a_deadline_ends_a_text_of_a_hung_worker(bundle: Path) -> None:
    params = SamplingParams(n=2, seed=3, max_tokens=30, ignore_eos=True, logprobs=1)

    async def main() -> None:
        async with steered(bundle) as engine:
            stream = engine.submit([STUCK], params, deadline=2.0)
            deltas: list[StreamDelta] = [delta async for delta in stream]
            output = await stream.output()
            assert [delta.finish_reason for delta in deltas] == [None, None, "abort", "abort"]
            for one in output.outputs:
                assert (one.finish_reason, one.stop_reason) == ("abort", "deadline")
                (token,) = one.token_ids
                assert one.logprobs is not None
                assert one.cumulative_logprob == one.logprobs[0][token].logprob
                assert len(one.layers_per_token) == 1
            assert output.prompt_token_ids == (STUCK,)
            assert engine.seconds_in_step > 0

    asyncio.run(main())


def test_a_worker_that_resumes_learns_of_cancelled_requests(bundle: Path) -> None:
    async def main() -> None:
        async with steered(bundle) as engine:
            stream = engine.submit([HOLD], LONG, request_id="a", deadline=2.0)
            await anext(stream)
            with stopped(engine):
                queued = [engine.generate([5], SHORT, deadline=0.5) for _ in range(3)]
                with pytest.raises(TimeoutError):
                    await engine.score([5], [6], deadline=0.5)
                for output in [await stream.output(), *await asyncio.gather(*queued)]:
                    assert output.outputs[0].stop_reason == "deadline"
                assert await engine.requests.wait_until_idle(0)
                with pytest.raises(UsageError, match="is in use"):
                    engine.submit([5], SHORT, request_id="a")
            await until(lambda: "a" not in engine.requests)
            output = await engine.generate([5], SHORT, request_id="a")
            assert output.outputs[0].finish_reason == "length"
            await until(lambda: engine.stats().waiting == engine.stats().running == 0)
            assert engine.stats().reserved_bytes == 0

    asyncio.run(main())


def test_requests_sent_to_a_hung_worker_are_bounded(bundle: Path) -> None:
    async def main() -> None:
        async with steered(bundle, max_waiting=4) as engine:
            with stopped(engine):
                late = [engine.generate([5], SHORT, deadline=0.0) for _ in range(4)]
                await asyncio.gather(*late)
                with pytest.raises(OverloadedError):
                    engine.submit([5], SHORT, deadline=0.0)

    asyncio.run(main())


def test_requests_of_a_hung_worker_can_be_ended(bundle: Path) -> None:
    async def main() -> None:
        async with steered(bundle) as engine:
            with stopped(engine):
                stream = engine.submit([5], LONG)
                scoring = asyncio.create_task(engine.score([5], [6]))
                while engine.requests.waiting < 2:
                    await asyncio.sleep(0)
                assert not await engine.drain(timeout=0.01)
                engine.requests.end_all(ClosedError("test", "is over"))
                assert await engine.drain(timeout=60)
                for waiting in (stream.output(), scoring):
                    with pytest.raises(ClosedError, match="is over"):
                        await waiting
                await asyncio.to_thread(engine.close)
                assert engine.worker_pid is None

    asyncio.run(main())
