"""How fast a schedule is: predicted from bytes, corrected by a measurement, measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from ..runtime.bench import Run, timed_run
from ..runtime.cost import CostModel
from ..runtime.generator import Generator
from ..runtime.schedule import ExitSchedule

_WARMUP_TOKENS = 4


@dataclass(frozen=True)
class MeasuredSpeedup:
    """Over full depth, run in turn with it."""

    schedule: ExitSchedule
    steps: float  # of the steps after the prompt, each the median of its repetitions
    call: float  # prompt included, median of the repetitions' ratios
    repetitions: int


@dataclass(frozen=True)
class SpeedModel:
    """Speed-ups of the steps after the prompt, at one prompt length and number of tokens.

    Of a full-depth step's time, the part ``fixed`` is the same at every depth; the rest goes with
    the bytes that are read. 0: bytes alone.
    """

    cost: CostModel
    prompt_length: int
    num_tokens: int
    fixed: float = 0.0

    def predicted(self, schedule: ExitSchedule) -> float:
        """From bytes alone."""
        return self.cost.speedup(schedule, [self.prompt_length], self.num_tokens)

    def expected(self, schedule: ExitSchedule) -> float:
        """With the fixed part: bytes say 4×, fixed is 0.2, so 1 / (0.2 + 0.8/4) = 2.5×."""
        return 1 / (self.fixed + (1 - self.fixed) / self.predicted(schedule))

    def calibrated(self, measured: MeasuredSpeedup) -> SpeedModel:
        """Choose ``fixed`` so that the expected speed-up is the measured one.

        Never below 0, so more than bytes promise is never counted on: where few layers fit into a
        cache that all of them don't, the fastest schedule gains more than that, and says little
        about the schedules in between.
        """
        share = 1 / self.predicted(measured.schedule)
        if share == 1:
            return self
        return replace(self, fixed=max(0.0, (1 / measured.steps - share) / (1 - share)))


def measure_speedup(
    generator: Generator,
    prompt: Sequence[int],
    schedule: ExitSchedule,
    *,
    num_tokens: int,
    repetitions: int,
) -> MeasuredSpeedup:
    """Generate ``num_tokens`` ≥ 2 after ``prompt``, one row, at full depth and at ``schedule``.

    Each repetition runs both, so that drift of the machine's speed hits both. Of each step counts
    the median over the repetitions: on a shared machine single steps take many times as long.
    """
    full = ExitSchedule.full(schedule.num_layers)
    for warming in (full, schedule):  # on a device all plans, whose graphs are captured on the way
        count = _WARMUP_TOKENS if generator.device is None else num_tokens
        timed_run(generator, [prompt], warming, min(count, num_tokens))
    pairs: list[tuple[Run, Run]] = [
        (
            timed_run(generator, [prompt], full, num_tokens),
            timed_run(generator, [prompt], schedule, num_tokens),
        )
        for _ in range(repetitions)
    ]
    return MeasuredSpeedup(
        schedule=schedule,
        steps=_steady_seconds([deep for deep, _ in pairs])
        / _steady_seconds([own for _, own in pairs]),
        call=median(deep.wall_seconds / own.wall_seconds for deep, own in pairs),
        repetitions=repetitions,
    )


def _steady_seconds(runs: Sequence[Run]) -> float:
    """Sum over the steps of their medians over the runs; ((1, 9), (2, 2), (1, 3)): 1 + 3."""
    num_steps = len(runs[0].step_seconds)
    return sum(median(run.step_seconds[step] for run in runs) for step in range(num_steps))
