"""The bundle that a worker opens, and the worker's share of the machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from ....engines.bundle import EngineBundle
from ....engines.errors import UsageError
from ....engines.host.processor import available_cores
from ...generator import Generator
from ...opening import OpenOptions
from ...scheduling.scheduler import parse_admission
from ..outline import BundleOutline


class WorkerSettings(OpenOptions):
    """The options of a worker's bundle at ``path``.

    The worker is number ``worker`` of ``workers``, which share ``threads`` (None: one for each
    processor) and ``kv_memory``: of 5 threads two workers get 3 and 2, and each gets at least one.
    """

    path: Path
    worker: int = Field(default=0, ge=0)
    workers: int = Field(default=1, ge=1)

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        try:
            parse_admission(self.admission)
        except UsageError as error:
            yield from (f"`admission` {problem}" for problem in error.problems)

    @property
    def process_threads(self) -> int:
        """The size of this worker's thread pool."""
        each, over = divmod(self.threads or available_cores(), self.workers)
        return max(1, each + (self.worker < over))

    def own_options(self) -> WorkerSettings:
        """Return the options with which this worker opens its bundle: its share of the memory."""
        share = None if self.kv_memory is None else max(1, self.kv_memory // self.workers)
        return self.updated(kv_memory=share, kv_shares=self.workers)

    def outline(self) -> BundleOutline:
        """Read the bundle in this process, without its engines.

        Raises BundleError and ScheduleError.
        """
        bundle = EngineBundle.open(self.path)
        return BundleOutline.of(bundle, self.schedule, raw_prompts=self.raw_prompts)

    def open(self) -> Generator:
        """Load the engines in this process; raises what `Generator.open` raises."""
        return Generator.open_with_shared_pool(self.path, self.own_options())
