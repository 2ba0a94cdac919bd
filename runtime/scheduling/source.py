"""Makes the engines of a generator: one that lasts, or one for each call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ...engines.manifest import ModelSpec
from ..requests.request import Request
from ..requests.runner import BatchRunner
from ..requests.step import Step
from ..schedule import ExitSchedule
from ..schedule.resolver import ScheduleResolver
from ..stitching.slots import SlotStitcher
from ..tokens.tokenizer import Tokenizer
from .call import Call
from .engine import Engine
from .parts import EngineConfig, EngineParts


@dataclass(frozen=True)
class EngineSource:
    """What every engine of one generator shares; one at a time, see `LoadedEngines.exclusive`."""

    runner: BatchRunner
    model: ModelSpec
    tokenizer: Tokenizer | None
    schedules: ScheduleResolver

    @contextmanager
    def engine(self, config: EngineConfig, *, max_model_len: int | None) -> Iterator[Engine]:
        """Hold the generator for one; see `Generator.engine`."""
        keeps_prefixes = config.prefixes != "off"
        slots = self.runner.make_slots(max_model_len, keeps_prefixes=keeps_prefixes)
        with self.runner.holding(slots, lasts=True):
            yield Engine(self._parts(slots), config)

    def steps(
        self,
        requests: Sequence[Request],
        schedules: Sequence[ExitSchedule],
        cancelled: Callable[[], bool],
    ) -> Iterator[Step]:
        """Check at once that all can run; return the steps of the call, run as they are asked for.

        They are those of an engine of the call's own.
        """
        slots = self.runner.make_call_slots(requests)
        config = EngineConfig(
            fills_first=True, failures="raise", admission=self.runner.limits.call_admission
        )
        call = Call(Engine(self._parts(slots), config), requests, schedules)

        def steps() -> Iterator[Step]:
            with self.runner.holding(slots):
                yield from call.steps(cancelled)

        return steps()

    def _parts(self, slots: SlotStitcher) -> EngineParts:
        return EngineParts(
            engines=self.runner.engines,
            slots=slots,
            layout=self.runner.layout,
            max_rows=self.runner.limits.max_batch_size,
            model=self.model,
            tokenizer=self.tokenizer,
            schedules=self.schedules,
            scorer=self.runner.scorer,
        )
