"""An engine in a thread survives cancelled calls, hung steps and failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from http_servers import held_steps

from skipdec import Generator, SamplingParams
from skipdec.engines.errors import SkipDecError, UsageError
from skipdec.runtime.scheduling.running_request import RunningRequest
from skipdec.runtime.serving.async_engine import AsyncEngine

LONG = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
SHORT = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
PROMPTS = [[5, 6, 7], [8, 9], [10, 11, 12, 13], [5, 9]]


@asynccontextmanager
async def opened(bundle: Path, max_waiting: int = 256) -> AsyncIterator[AsyncEngine]:
    async with AsyncEngine.open(
        bundle, threads=1, max_batch_size=2, max_waiting=max_waiting
    ) as engine:
        async with asyncio.timeout(120):
            yield engine


def alone(bundle: Path, prompt: list[int], params: SamplingParams = SHORT) -> tuple[int, ...]:
    with Generator.open(bundle, threads=1) as generator:
        return generator.generate([prompt], params)[0].outputs[0].token_ids


def test_a_failed_open_closes_its_generator(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Generator] = []
    close = Generator.close
    monkeypatch.setattr(Generator, "close", lambda one: (closed.append(one), close(one)))

    async def main() -> None:
        with pytest.raises(UsageError, match="max_model_len"):
            async with AsyncEngine.open(bundle, threads=1, max_model_len=1000):
                pass

    asyncio.run(main())
    assert len(closed) == 1


def test_cancelling_a_call_cancels_its_request(bundle: Path) -> None:
    async def main() -> None:
        async with opened(bundle) as engine:
            with held_steps():
                task = asyncio.create_task(engine.generate(PROMPTS[0], LONG, request_id="mine"))
                while not engine.stats().generated_tokens:
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert await engine.drain(timeout=10)
            assert engine.stats().aborted == 1

    asyncio.run(main())


def test_a_request_without_memory_fails_alone(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, create = alone(bundle, PROMPTS[0]), RunningRequest.create

    def refuse(*given: Any, **named: Any) -> RunningRequest:  # noqa: ANN401
        if named["outputs"] == range(2):
            raise MemoryError("on purpose")
        return create(*given, **named)

    monkeypatch.setattr(RunningRequest, "create", refuse)

    async def main() -> None:
        async with opened(bundle) as engine:
            with pytest.raises(SkipDecError, match="on purpose"):
                await engine.generate(PROMPTS[0], SamplingParams(n=2))
            output = await engine.generate(PROMPTS[0], SHORT)
            assert output.outputs[0].token_ids == expected
            assert await engine.drain(timeout=10)

    asyncio.run(main())


def test_a_deadline_is_kept_while_a_step_hangs(bundle: Path) -> None:
    expected = alone(bundle, PROMPTS[0])

    async def main() -> None:
        async with opened(bundle) as engine:
            with held_steps():
                output = await engine.generate(PROMPTS[0], LONG, deadline=0.05)
                (one,) = output.outputs
                assert (one.finish_reason, one.stop_reason) == ("abort", "deadline")
                assert one.token_ids == expected[: len(one.token_ids)]
            assert await engine.drain(timeout=60)

    asyncio.run(main())


def test_many_calls_of_drain_can_wait_at_once(bundle: Path) -> None:
    """Waiting must not occupy threads of a pool, which has few."""

    def refuse(*_: object) -> None:
        raise AssertionError("a thread of a pool")

    async def main() -> None:
        async with opened(bundle) as engine:
            with held_steps(), pytest.MonkeyPatch.context() as patch:
                stream = engine.submit(PROMPTS[0], LONG)
                patch.setattr(asyncio.BaseEventLoop, "run_in_executor", refuse)
                drained = await asyncio.gather(*(engine.drain(timeout=0.1) for _ in range(64)))
            assert drained == [False] * 64
            assert (await stream.output()).finished

    asyncio.run(main())
