"""An engine in a forked child: it refuses by name, and the parent's goes on."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from workers import SHORT, settings

from skipdec import SkipDecError
from skipdec.runtime.serving.async_engine import AsyncEngine
from skipdec.runtime.serving.process.engine import ProcessEngine
from skipdec.runtime.serving.service import EngineService

pytestmark = pytest.mark.slow  # some start processes

OPENERS: dict[str, Callable[[Path], AbstractAsyncContextManager[EngineService]]] = {
    "AsyncEngine": lambda bundle: AsyncEngine.open(bundle, threads=1),
    "ProcessEngine": lambda bundle: ProcessEngine.opened(settings(bundle)),
}


def uses(engine: EngineService) -> Sequence[Callable[[], object]]:
    """All that would wait for another thread, begun as a coroutine's first step begins it."""
    return (
        lambda: engine.submit([5], SHORT),
        lambda: engine.score([5], [6]).send(None),  # type: ignore[attr-defined]
        lambda: engine.abort("a").send(None),  # type: ignore[attr-defined]
        lambda: engine.drain().send(None),  # type: ignore[attr-defined]
        engine.stats,
    )


def told_in_a_fork(engine: EngineService) -> list[str]:
    """Collect the errors of each use in a forked child, which closes the engine at the end."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a child that hangs is killed, which fails the test
        try:
            for use in uses(engine):
                try:
                    use()
                except SkipDecError as error:
                    os.write(writer, f"{error}\n".encode())
            os.write(writer, f"{engine.refusal}\n".encode())
            engine.close()
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as told:
        lines = told.read().splitlines()
    assert os.waitpid(child, 0) == (child, 0)
    return lines


@pytest.mark.parametrize("kind", OPENERS)
def test_a_fork_is_refused_by_name_and_harms_nobody(
    kind: str, exported: Callable[..., Path]
) -> None:
    bundle = exported("pre_norm", quantize="int8", kernels="auto")

    async def main() -> None:
        async with OPENERS[kind](bundle) as engine:
            before = await engine.generate([5, 6], SHORT)
            told = told_in_a_fork(engine)
            assert len(told) == 6
            assert all("is a fork" in line for line in told)
            assert told[0].startswith(kind)
            after = await engine.generate([5, 6], SHORT)
            assert after.outputs[0].token_ids == before.outputs[0].token_ids

    asyncio.run(main())
