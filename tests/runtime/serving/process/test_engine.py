"""A ProcessEngine passes on errors of opening, and leaves no process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from workers import settings, until

from skipdec import (
    BundleError,
    CapacityError,
    SkipDecError,
    UsageError,
)
from skipdec.runtime.serving.process.engine import ProcessEngine

pytestmark = pytest.mark.slow  # each starts a process


def test_an_error_of_opening_keeps_its_type(bundle: Path, tmp_path: Path) -> None:
    async def opened(path: Path, **options: object) -> None:
        async with ProcessEngine.opened(settings(path, **options)):
            pass

    with pytest.raises(BundleError, match="is not a bundle"):
        asyncio.run(opened(tmp_path))
    with pytest.raises(UsageError, match=r"max_model_len .* is 9999; the bundle holds"):
        asyncio.run(opened(bundle, max_model_len=9999))
    with pytest.raises(CapacityError, match=r"kv_memory .* is 1 bytes for this bundle; allowed: "):
        asyncio.run(opened(bundle, kv_memory=1))
    with pytest.raises(SkipDecError, match="device"):
        asyncio.run(opened(bundle, device="cuda:99", threads=None))


def test_an_engine_closed_while_loading_leaves_no_process(bundle: Path) -> None:
    async def main() -> None:
        worker_settings = settings(bundle)
        engine = ProcessEngine(worker_settings, worker_settings.inputs())
        await until(lambda: engine.worker_pid is not None)
        pid = engine.worker_pid
        await asyncio.to_thread(engine.close)
        assert not Path(f"/proc/{pid}").exists()
        assert not engine.loaded.done()

    asyncio.run(main())
