"""Open workers of tiny bundles whose steps a prompt steers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic

import pytest

from skipdec import SamplingParams
from skipdec.runtime.serving.process import supervisor
from skipdec.runtime.serving.process.engine import ProcessEngine
from skipdec.runtime.serving.process.settings import RestartPolicy, WorkerSettings

LONG = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
SHORT = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
AT_ONCE = RestartPolicy(delays=(0.0,))


def settings(bundle: Path, **options: object) -> WorkerSettings:
    """Return settings of a worker with one thread and two rows."""
    values = {"threads": 1, "max_batch_size": 2, "verify": "graphs"} | options
    return WorkerSettings(path=bundle, **values)  # type: ignore[arg-type]


@asynccontextmanager
async def steered(
    bundle: Path, policy: RestartPolicy = AT_ONCE, **options: object
) -> AsyncIterator[ProcessEngine]:
    """Open an engine whose worker is steered by a prompt's first token."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor, "WORKER", "steered_worker")
        async with ProcessEngine.opened(settings(bundle, **options), policy) as engine:
            yield engine


async def until(is_so: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until other threads or processes make ``is_so`` true."""
    end = monotonic() + seconds
    while not is_so():
        assert monotonic() < end
        await asyncio.sleep(0.001)  # leaves the processor to others
