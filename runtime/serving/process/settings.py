"""What a worker opens, and how it runs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from ....engines.backends.session import EngineBackend, default_device, open_backend
from ....engines.bundle import EngineBundle, Verify, WeightsPlace
from ....engines.checking import MemorySize, ValidatedConfig
from ....engines.errors import UsageError
from ....engines.host.processor import available_cores, thread_problems
from ...generator import Generator
from ...scheduling.admission import parse_admission
from ..config import ServiceConfig
from ..outline import BundleOutline


class WorkerSettings(ValidatedConfig):
    """A bundle and how its worker runs it; options as in `Generator.open` and `ServiceConfig`.

    It is number ``worker`` of ``workers``, which share ``threads`` (None: as many as processors)
    and ``kv_memory``: 5 threads and 2 workers are 3 and 2, each has one at least.
    """

    path: Path
    schedule: str | None = None
    device: str | None = None
    threads: int | None = Field(default=None, ge=1)
    max_batch_size: int = Field(default=8, ge=1)
    kv_memory: MemorySize | None = Field(default=None, ge=1)
    raw_prompts: bool = False
    weights: WeightsPlace = "mapped"
    verify: Verify = "full"
    service: ServiceConfig = ServiceConfig()
    worker: int = Field(default=0, ge=0)
    workers: int = Field(default=1, ge=1)

    def _problems(self) -> Iterator[str]:
        yield from (f"`threads` {problem}" for problem in thread_problems(self.threads))
        try:
            parse_admission(self.service.admission)
        except UsageError as error:
            yield from (f"`service.admission` {problem}" for problem in error.problems)

    @property
    def own_threads(self) -> int:
        """Threads of this worker's pool."""
        each, over = divmod(self.threads or available_cores(), self.workers)
        return max(1, each + (self.worker < over))

    @property
    def own_kv_memory(self) -> int | None:
        """Bytes that this worker's caches may take; None: its part of the default."""
        return None if self.kv_memory is None else max(1, self.kv_memory // self.workers)

    def outline(self) -> BundleOutline:
        """Read the bundle in this process, which does not load its engines.

        Raises BundleError and ScheduleError.
        """
        bundle = EngineBundle.open(self.path)
        return BundleOutline.of(bundle, self.schedule, raw_prompts=self.raw_prompts)

    def open(self) -> Generator:
        """Load the engines in this process; on a CPU all share one pool of threads.

        Raises what `Generator.open` raises, and UsageError for threads where engines run on a GPU.
        """
        return EngineBundle.load(self.path, self._load, verify=self.verify)

    def _load(self, bundle: EngineBundle) -> Generator:
        target = bundle.manifest.target
        device = self.device or default_device(target)
        if device == "cpu":
            from ....engines.backends.ort import use_shared_thread_pool

            use_shared_thread_pool(self.own_threads)
        elif self.threads is not None:
            raise UsageError(
                "threads", f"is {self.threads}, but engines run on {device}; leave it out"
            )
        return self.generator(bundle, open_backend(target, device=device, weights=self.weights))

    def generator(self, bundle: EngineBundle, backend: EngineBackend) -> Generator:
        """Load the engines of ``bundle`` on ``backend``, with this worker's share of memory."""
        return Generator(
            bundle,
            backend,
            schedule=self.schedule,
            max_batch_size=self.max_batch_size,
            kv_memory=self.own_kv_memory,
            kv_shares=self.workers,
            raw_prompts=self.raw_prompts,
        )
