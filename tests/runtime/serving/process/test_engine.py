"""A bundle in a worker process: what it knows of its worker, and how that begins and ends."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from steered_worker import STUCK
from workers import LONG, settings, steered, until

from skipdec import (
    BundleError,
    RequestOutput,
    SkipDecError,
)
from skipdec.runtime.serving.process.engine import ProcessEngine

pytestmark = pytest.mark.slow  # each starts a process

PROMPTS = [[5, 6, 7], [8, 9], [10, 11, 12, 13], [5, 9]]


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
