"""Many asyncio clients of one engine thread: their texts, their cancellations, its limits."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Thread

import pytest
from http_servers import held_steps

from skipdec import (
    CapacityError,
    ClosedError,
    Generator,
    OverloadedError,
    RequestStream,
    SamplingParams,
    SkipDecError,
    UsageError,
)
from skipdec.engines.backends.ort import OrtBinding
from skipdec.runtime.serving.async_engine import AsyncEngine

LONG = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
SHORT = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
PROMPTS = [[5, 6, 7], [8, 9], [10, 11, 12, 13], [5, 9]]


@pytest.fixture(scope="module")
def bundle(exported: Callable[..., Path]) -> Path:
    return exported("pre_norm", quantize="int8", kernels="auto")


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


def test_each_client_gets_its_own_text_whole_or_token_by_token(bundle: Path) -> None:
    async def main() -> tuple[list[tuple[int, ...]], list[int]]:
        async with opened(bundle) as engine:
            async with engine.submit(PROMPTS[0], SHORT) as stream:
                others = [engine.generate(prompt, SHORT) for prompt in PROMPTS]
                outputs, deltas = await asyncio.gather(
                    asyncio.gather(*others), asyncio.create_task(collect(stream))
                )
            assert engine.stats().requests == 0
            return [output.outputs[0].token_ids for output in outputs], deltas

    async def collect(stream: object) -> list[int]:
        return [token async for delta in stream for token in delta.token_ids]  # type: ignore[attr-defined]

    texts, deltas = asyncio.run(main())
    expected = [alone(bundle, prompt) for prompt in PROMPTS]
    assert texts == expected
    assert tuple(deltas) == expected[0]


def test_leaving_a_stream_cancels_it_and_frees_its_slots(bundle: Path) -> None:
    async def main() -> None:
        async with opened(bundle) as engine:
            with held_steps():
                async with engine.submit(PROMPTS[0], LONG) as stream:
                    await anext(stream)
            output = await stream.output()
            assert output.outputs[0].finish_reason == "abort"
            assert len(output.outputs[0].token_ids) < 40
            assert engine.stats().reserved_bytes == 0
            assert (await engine.generate(PROMPTS[1], SHORT)).finished

    asyncio.run(main())


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


def test_a_deadline_ends_what_runs_and_what_waits(bundle: Path) -> None:
    async def main() -> None:
        async with opened(bundle) as engine:
            outputs = await asyncio.gather(
                *(engine.generate(PROMPTS[0], LONG, deadline=0.0) for _ in range(3))
            )
        assert {one.outputs[0].stop_reason for one in outputs} == {"deadline"}
        assert {one.outputs[0].finish_reason for one in outputs} == {"abort"}

    asyncio.run(main())


def test_a_deadline_before_now_ends_a_text_at_once_and_nan_is_refused(bundle: Path) -> None:
    async def main() -> None:
        async with opened(bundle) as engine:
            output = await engine.generate(PROMPTS[0], LONG, deadline=-1.0)
            assert output.outputs[0].stop_reason == "deadline"
            with pytest.raises(UsageError, match=r"deadline \| is nan; allowed: seconds"):
                engine.submit(PROMPTS[0], LONG, deadline=math.nan)
            with pytest.raises(UsageError, match=r"timeout \| is nan"):
                await engine.drain(math.nan)
            engine.submit(PROMPTS[0], SHORT)  # it does not drain

    asyncio.run(main())


def test_a_deadline_is_kept_while_a_step_hangs(bundle: Path) -> None:
    whole = alone(bundle, PROMPTS[0])

    async def main() -> None:
        async with opened(bundle) as engine:
            with held_steps():
                output = await engine.generate(PROMPTS[0], LONG, deadline=0.05)
                (one,) = output.outputs
                assert (one.finish_reason, one.stop_reason) == ("abort", "deadline")
                assert one.token_ids == whole[: len(one.token_ids)]
            assert await engine.drain(timeout=60)

    asyncio.run(main())


def test_many_can_wait_for_an_end_at_once(bundle: Path) -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        async with opened(bundle) as engine:
            with held_steps():
                stream = engine.submit(PROMPTS[0], LONG)
                start = loop.time()
                drained = await asyncio.gather(*(engine.drain(timeout=0.5) for _ in range(64)))
                took = loop.time() - start
            assert drained == [False] * 64
            assert (await stream.output()).finished
        return took

    assert asyncio.run(main()) < 3  # a pool of threads would take them in turn


def test_when_too_many_wait_a_request_is_refused_and_later_taken(bundle: Path) -> None:
    async def main() -> None:
        async with opened(bundle, max_waiting=2) as engine:
            taken: list[RequestStream] = []
            with held_steps(), pytest.raises(OverloadedError) as refused:
                taken.extend(engine.submit(PROMPTS[0], LONG) for _ in range(9))
            assert refused.value.retry_after >= 1
            assert 2 <= len(taken) <= 5
            for stream in taken:
                assert (await stream.output()).finished
            assert (await engine.generate(PROMPTS[0], SHORT)).finished

    asyncio.run(main())


def test_what_is_wrong_is_said_before_it_is_queued(bundle: Path) -> None:
    async def main() -> None:
        async with opened(bundle) as engine:
            with pytest.raises(UsageError, match="no tokens"):
                engine.submit([], SHORT)
            with pytest.raises(SkipDecError, match="schedule"):
                engine.submit([5], SHORT, schedule="3y")
            with pytest.raises(CapacityError, match="n 3"):
                engine.submit([5], SamplingParams(n=3, max_tokens=2))
            engine.submit([5], LONG, request_id="a")
            with pytest.raises(UsageError, match="'a' is in use"):
                engine.submit([5], SHORT, request_id="a")
            await engine.abort("a")
            await engine.abort("never seen")

    asyncio.run(main())


def test_a_draining_engine_ends_what_it_has_and_takes_nothing_new(bundle: Path) -> None:
    async def main() -> None:
        async with opened(bundle) as engine:
            with held_steps():
                stream = engine.submit(PROMPTS[0], LONG)
                assert not await engine.drain(timeout=0)
                with pytest.raises(ClosedError, match="draining"):
                    engine.submit([5], SHORT)
            assert await engine.drain(timeout=30)
            assert (await stream.output()).outputs[0].finish_reason == "length"

    asyncio.run(main())


def test_closing_ends_open_streams_with_an_error(bundle: Path) -> None:
    async def main() -> None:
        async with opened(bundle) as engine:
            streams = [engine.submit(PROMPTS[0], LONG) for _ in range(20)]  # two run at a time
        with pytest.raises(ClosedError):
            await streams[-1].output()

    asyncio.run(main())


def test_an_engine_that_fails_is_told_to_those_that_ran(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: OrtBinding) -> None:
        raise SkipDecError("engine layer_001", "ONNX Runtime failed to run it")

    async def main() -> None:
        async with opened(bundle) as engine:
            with monkeypatch.context() as patch:
                patch.setattr(OrtBinding, "run", broken)
                output = await engine.generate(PROMPTS[0], SHORT)
            assert output.outputs[0].finish_reason == "error"
            assert "layer_001" in str(output.outputs[0].stop_reason)
            assert (await engine.generate(PROMPTS[0], SHORT)).outputs[0].finish_reason == "length"

    asyncio.run(main())


def test_clients_of_several_event_loops_share_an_engine(bundle: Path) -> None:
    texts: list[tuple[int, ...]] = []

    async def main() -> None:
        async with opened(bundle) as engine:

            async def ask() -> None:
                for _ in range(5):
                    output = await engine.generate(PROMPTS[2], SHORT)
                    texts.append(output.outputs[0].token_ids)

            threads = [Thread(target=lambda: asyncio.run(ask())) for _ in range(4)]
            for thread in threads:
                thread.start()
            await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads))

    asyncio.run(main())
    assert texts == [alone(bundle, PROMPTS[2])] * 20
