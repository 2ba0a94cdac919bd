"""After a worker dies, a new one starts, unless it cannot or the bundle was replaced."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from mutations import copy_bundle
from steered_worker import LOG, RAISE
from workers import SHORT, settings, steered, until

from skipdec import Generator, WorkerDiedError
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


def test_an_exception_in_the_engine_thread_ends_the_worker(
    bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with steered(bundle) as engine:
            with pytest.raises(WorkerDiedError, match="exit code 1"):
                await engine.generate([RAISE], SHORT)
            assert (await engine.generate([5], SHORT)).finished

    asyncio.run(main())
    assert "RuntimeError: a bug" in caplog.text


def test_a_line_that_cannot_be_logged_ends_no_worker(bundle: Path) -> None:
    async def main() -> None:
        async with steered(bundle) as engine:
            assert (await engine.generate([LOG], SHORT)).finished

    asyncio.run(main())


def test_a_worker_starts_as_soon_as_resources_suffice(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = [errno.EMFILE, errno.EAGAIN, errno.ENOMEM]

    def fail_to_start(*options: object) -> WorkerProcess:
        if failures:
            raise OSError(failures.pop(), "too little of something")
        return WorkerProcess(*options)  # type: ignore[arg-type]

    async def main() -> None:
        async with steered(bundle) as engine:
            monkeypatch.setattr(supervisor, "WorkerProcess", fail_to_start)
            kill(engine)
            await until(lambda: engine.unready is not None)
            late = await engine.generate([5], SHORT, deadline=0.0)
            assert late.outputs[0].stop_reason == "deadline"
            assert (await engine.generate([5], SHORT)).finished

    monkeypatch.setattr(supervisor, "_START_SECONDS", 0.01)
    asyncio.run(main())
    assert caplog.text.count("can't be started: too little of something") == 3


@pytest.mark.parametrize(
    ("failure", "kind", "text"),
    [
        ("full disk", OSError, "[Errno 28] No space left on device: '{bundle}/weights.bin'"),
        ("no number", OSError, "a library's own words"),
        ("no memory", MemoryError, "MemoryError"),
    ],
)
def test_an_error_of_the_system_while_loading_is_raised_and_tried_again_later(
    failure: str,
    kind: type[Exception],
    text: str,
    bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = text.format(bundle=bundle)
    monkeypatch.setenv("FAILURE", failure)

    async def start() -> None:
        async with ProcessEngine.opened(settings(bundle)):
            pass

    async def restart() -> None:
        policy = RestartPolicy(max_deaths=1000, delays=(0.0,))
        async with steered(bundle, policy) as engine:
            monkeypatch.setattr(supervisor, "WORKER", "failing_worker")
            kill(engine)
            await until(lambda: f"can't load: {text}" in caplog.text)
            monkeypatch.setattr(supervisor, "WORKER", "steered_worker")
            assert (await engine.generate([5], SHORT)).finished

    with monkeypatch.context() as patch:
        patch.setattr(supervisor, "WORKER", "failing_worker")
        with pytest.raises(kind) as caught:
            asyncio.run(start())
    assert str(caught.value) == text
    assert getattr(caught.value, "errno", None) == (errno.ENOSPC if "full" in failure else None)
    assert "Traceback" not in caplog.text
    asyncio.run(restart())


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOENT])
def test_an_engine_fails_if_its_first_worker_cannot_start(
    bundle: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_to_start(*options: object) -> WorkerProcess:
        raise OSError(number, "too little of something")

    async def main() -> None:
        monkeypatch.setattr(supervisor, "WorkerProcess", fail_to_start)
        async with steered(bundle):
            pass

    with pytest.raises(WorkerDiedError, match="can't be started: too little"):
        asyncio.run(main())


def test_an_engine_fails_if_its_bundle_is_replaced(
    bundle: Path, exported: Callable[..., Path], tmp_path: Path
) -> None:
    copied = copy_bundle(bundle, tmp_path)
    other = exported("post_norm", quantize="int8", kernels="auto")

    async def main() -> Tokens:
        async with steered(copied) as engine:
            copied.rename(tmp_path / "old")
            copy_bundle(other, tmp_path).rename(copied)
            kept = await tokens(engine, [5, 6])  # the worker has the old bundle open
            kill(engine)
            reason = await asyncio.wrap_future(engine.failure)
            assert "was replaced by another bundle" in reason
            return kept

    assert [asyncio.run(main())] == alone(bundle, [5, 6])
