"""A worker that dies: what ran is told, what waited goes on, and who is to blame runs no more."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import pytest
from mutations import copy_bundle
from steered_worker import DIE, HOLD, RAISE
from workers import LONG, SHORT, steered, until

from skipdec import Generator, UsageError, WorkerDiedError
from skipdec.runtime.serving.process import supervisor
from skipdec.runtime.serving.process.engine import ProcessEngine
from skipdec.runtime.serving.process.settings import RestartPolicy
from skipdec.runtime.serving.process.supervisor import WorkerProcess

pytestmark = pytest.mark.slow  # each starts several processes

Tokens = tuple[int, ...]


def alone(bundle: Path, *prompts: list[int]) -> list[Tokens]:
    with Generator.open(bundle, threads=1) as generator:
        outputs = generator.generate(prompts, SHORT)
    return [output.outputs[0].token_ids for output in outputs]


async def tokens(engine: ProcessEngine, prompt: list[int]) -> Tokens:
    return (await engine.generate(prompt, SHORT)).outputs[0].token_ids


def kill(engine: ProcessEngine) -> None:
    assert engine.worker_pid is not None
    os.kill(engine.worker_pid, signal.SIGKILL)


def test_running_fail_fast_and_waiting_move_to_next_worker(
    bundle: Path,
) -> None:
    async def main() -> list[Tokens]:
        async with steered(bundle) as engine:
            ran = [engine.submit([HOLD, index], LONG) for index in range(2)]  # both rows
            for stream in ran:
                await anext(stream)
            waiting = [asyncio.create_task(tokens(engine, prompt)) for prompt in ([5, 6], [7])]
            await until(lambda: engine.stats().waiting == 2)
            kill(engine)
            start = monotonic()
            for stream in ran:
                with pytest.raises(WorkerDiedError, match="SIGKILL"):
                    await stream.output()
            assert monotonic() - start < 1
            assert engine.unready == "is loading again, its worker died"
            assert engine.refusal is None
            late = await engine.generate([5], SHORT, deadline=0.0)  # no worker is there yet
            assert late.outputs[0].stop_reason == "deadline"
            async with engine.submit([5], SHORT) as left:
                pass
            assert (await left.output()).outputs[0].finish_reason == "abort"
            texts = await asyncio.gather(*waiting)
            assert engine.unready is None
            stats = engine.stats()
            assert (stats.finished, stats.failed, stats.submitted) == (2, 2, 4)
            return texts

    assert asyncio.run(main()) == alone(bundle, [5, 6], [7])


def test_a_request_that_ran_in_two_deaths_is_refused_and_others_are_not(bundle: Path) -> None:
    async def main() -> list[Tokens]:
        async with steered(bundle) as engine:
            for _ in range(2):
                beside = engine.submit([5, 6], LONG)
                await anext(beside)
                with pytest.raises(WorkerDiedError):
                    await engine.generate([DIE], SHORT)
                await asyncio.gather(beside.output(), return_exceptions=True)
            with pytest.raises(UsageError, match="running when a worker died, twice"):
                engine.submit([DIE], SHORT)
            output = await engine.generate([5, 6], LONG)
            assert output.outputs[0].finish_reason == "length"
            return [await tokens(engine, [5, 6])]

    assert asyncio.run(main()) == alone(bundle, [5, 6])


def test_exception_in_engine_thread_counts_as_death_and_is_logged(
    bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with steered(bundle) as engine:
            with pytest.raises(WorkerDiedError, match="exit code 1"):
                await engine.generate([RAISE], SHORT)
            assert (await engine.generate([5], SHORT)).finished

    asyncio.run(main())
    assert "RuntimeError: a bug" in caplog.text


def test_a_worker_that_dies_too_often_is_the_end(bundle: Path) -> None:
    async def main() -> None:
        policy = RestartPolicy(max_deaths=1, delays=(0.0,))
        async with steered(bundle, policy) as engine:
            for index in range(2):
                assert not engine.failure.done()
                with pytest.raises(WorkerDiedError):
                    await engine.generate([DIE, index], SHORT)
            reason = await asyncio.wrap_future(engine.failure)
            assert "died 2 times in 300 s, at last killed by SIGKILL" in reason
            assert engine.unready is not None
            with pytest.raises(Exception, match="has failed"):
                engine.submit([5], SHORT)

    asyncio.run(main())


def test_a_worker_is_started_as_soon_as_there_are_descriptors(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = [errno.EMFILE, errno.EAGAIN, errno.ENOMEM]

    def short(*options: object) -> WorkerProcess:
        if failures:
            raise OSError(failures.pop(), "too little of something")
        return WorkerProcess(*options)  # type: ignore[arg-type]

    async def main() -> None:
        async with steered(bundle) as engine:
            monkeypatch.setattr(supervisor, "WorkerProcess", short)
            kill(engine)
            await until(lambda: engine.unready is not None)
            late = await engine.generate([5], SHORT, deadline=0.0)
            assert late.outputs[0].stop_reason == "deadline"
            assert (await engine.generate([5], SHORT)).finished

    monkeypatch.setattr(supervisor, "_START_SECONDS", 0.01)
    asyncio.run(main())
    assert caplog.text.count("can't be started: too little of something") == 3


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOENT])
def test_a_first_worker_that_can_not_be_started_is_the_end(
    bundle: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*options: object) -> WorkerProcess:
        raise OSError(number, "too little of something")

    async def main() -> None:
        monkeypatch.setattr(supervisor, "WorkerProcess", short)
        async with steered(bundle):
            pass

    with pytest.raises(WorkerDiedError, match="can't be started: too little"):
        asyncio.run(main())


def test_a_bundle_that_was_replaced_is_not_run_with_the_old_ones_requests(
    bundle: Path, exported: Callable[..., Path], tmp_path: Path
) -> None:
    copied = copy_bundle(bundle, tmp_path)
    other = exported("post_norm", quantize="int8", kernels="auto")

    async def main() -> Tokens:
        async with steered(copied) as engine:
            copied.rename(tmp_path / "old")
            copy_bundle(other, tmp_path).rename(copied)
            kept = await tokens(engine, [5, 6])  # the worker has the old one open
            kill(engine)
            reason = await asyncio.wrap_future(engine.failure)
            assert "was replaced by another bundle" in reason
            return kept

    assert [asyncio.run(main())] == alone(bundle, [5, 6])
