"""Options of worker processes: the bundle that each opens, and how often one may die."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from ....engines.bundle import EngineBundle
from ....engines.checking import ValidatedConfig
from ....engines.host.processor import available_cores
from ...opening import OpenOptions

if TYPE_CHECKING:
    from ...generator import Generator
    from ..inputs import InputProcessor


class RestartPolicy(ValidatedConfig):
    """Limits on the deaths of a worker, and the delay before each restart.

    ``poison_timeout``: for so many seconds a request with which two workers died is refused; then
    it is tried once more.
    """

    max_deaths: Annotated[int, Field(ge=0)] = 3  # within `period` seconds; one more is final
    period: Annotated[float, Field(gt=0)] = 300.0
    delays: Annotated[tuple[float, ...], Field(min_length=1)] = (0.0, 1.0, 4.0)  # the last repeats
    poison_timeout: float = Field(
        default=3600.0,
        gt=0,
        description="seconds in which a request is refused with which two workers died",
    )
    # Seconds for which a start is retried if descriptors, processes or memory are short.
    start_timeout: Annotated[float, Field(ge=0)] = 300.0


class WorkerSettings(OpenOptions):
    """The options of a worker for the bundle at ``path``.

    The worker is number ``worker`` of ``workers``, which share ``threads`` (None: one per
    processor) and ``kv_memory``. Two workers get 3 and 2 of 5 threads; each gets at least one.
    """

    path: Path
    worker: int = Field(default=0, ge=0)
    workers: int = Field(default=1, ge=1)

    @property
    def process_threads(self) -> int:
        """The size of this worker's thread pool."""
        each, over = divmod(self.threads or available_cores(), self.workers)
        return max(1, each + (self.worker < over))

    def own_options(self) -> WorkerSettings:
        """Return the options with which this worker opens its bundle: its share of the memory."""
        share = None if self.kv_memory is None else max(1, self.kv_memory // self.workers)
        return self.updated(kv_memory=share, kv_shares=self.workers)

    def inputs(self) -> InputProcessor:
        """Read the bundle in this process, without its engines.

        Raises BundleError, ScheduleError, and UsageError for drafts that do not fit the bundle.
        """
        from ..inputs import InputProcessor  # imports NumPy

        return InputProcessor.of(EngineBundle.open(self.path), self)

    def open(self) -> Generator:
        """Load the engines in this process; raises what `Generator.open` raises."""
        from ...generator import Generator

        return Generator.open_with_shared_pool(self.path, self.own_options())
