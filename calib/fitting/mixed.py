"""How much faster a running batch is whose rows stand anywhere in their texts: measured."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from ...engines.errors import CapacityError, SkipDecError
from ...runtime.generator import Generator
from ...runtime.measuring.disturbance import disturbance, spread
from ...runtime.schedule import ExitSchedule
from ...runtime.scheduling.engine import Engine
from ...runtime.tokens.sampling import SamplingParams
from .speed import MeasuredSpeedup, calmest


@dataclass(frozen=True)
class _Period:
    """As many steps of a full batch as a text has, so that each row passes all of its tokens."""

    step_seconds: float  # mean
    prompt_seconds: float  # of the prompts that came in between, as many as rows; a step's share
    rows: float  # mean of its steps


def measure_mixed(
    generator: Generator,
    prompt: Sequence[int],
    schedule: ExitSchedule,
    *,
    num_tokens: int,
    repetitions: int,
    allowed: float,
    slots: int,
) -> MeasuredSpeedup:
    """Run ``slots`` rows in a `Generator.engine`, at full depth and at ``schedule`` in turn.

    Each text has ``num_tokens`` ≥ 2 after ``prompt``, and when one ends the next begins. The first
    of each row are cut to lengths drawn at random, others in each repetition and the same for both
    depths; from when the last of these has ended, a period of ``num_tokens`` − 1 steps is timed.
    Of these counts the mean, since steps differ by where rows stand, and of the repetitions the
    median. What a `disturbance` shows in is measured again, as in `measure_speedup`.

    Raises CapacityError where so many rows never run at once.
    """
    full = ExitSchedule.full(schedule.num_layers)
    with generator.engine(
        admission="fcfs", prefix_cache=False, max_model_len=len(prompt) + num_tokens
    ) as engine:
        batch = _RunningBatch(engine, prompt, num_tokens, slots)
        if generator.device is not None:  # graphs are captured on the way
            for warming in (full, schedule):
                batch.measure(warming, seed=0)
        return calmest(lambda: _measure_once(batch, full, schedule, repetitions, allowed), allowed)


class _RunningBatch:
    """Rows of equal prompts and lengths that an engine runs together, one schedule at a time."""

    def __init__(self, engine: Engine, prompt: Sequence[int], num_tokens: int, slots: int) -> None:
        self._engine = engine
        self._prompt = list(prompt)
        self._num_tokens = num_tokens
        self._slots = slots

    def measure(self, schedule: ExitSchedule, seed: int) -> _Period:
        """Bring the batch into its steady state, time a period, and leave nothing behind.

        Raises CapacityError, SkipDecError.
        """
        engine, period = self._engine, self._num_tokens - 1
        chance = random.Random(seed)
        first = [self._add(schedule, chance.randint(1, period)) for _ in range(self._slots)]
        # A row ends once before the period and once in it, and one more begins each time.
        others = [self._add(schedule, self._num_tokens) for _ in range(2 * self._slots)]
        most = 0
        while not all(map(engine.has_ended, first)):
            engine.step()
            most = max(most, engine.stats().running)
        before = after = engine.stats()
        while engine.is_busy and after.steps < before.steps + period:
            engine.step()
            after = engine.stats()
            most = max(most, after.running)
        self._clear([*first, *others])
        if most < self._slots:
            raise self._refused(most)
        return _Period(
            step_seconds=(after.decode_seconds - before.decode_seconds) / period,
            prompt_seconds=(after.prefill_seconds - before.prefill_seconds) / period,
            rows=(after.step_rows - before.step_rows) / period,
        )

    def _clear(self, numbers: Sequence[int]) -> None:
        """End what still runs or waits. Raises SkipDecError if an engine had failed."""
        for number in numbers:
            self._engine.abort(number)
        for output in [self._engine.take(number).outputs[0] for number in numbers]:
            if output.finish_reason == "error":
                raise SkipDecError("--speedup-of mixed", f"a row failed: {output.stop_reason}")

    def _add(self, schedule: ExitSchedule, max_tokens: int) -> int:
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        return self._engine.add(self._prompt, params, schedule=schedule)

    def _refused(self, most: int) -> CapacityError:
        return CapacityError(
            "--slots",
            f"is {self._slots}, but of prompts of {len(self._prompt)} tokens and texts of "
            f"{self._num_tokens} at most {most} ran at once: too little KV memory, or texts that "
            f"end before the next prompts have run; allowed here: 1 … {most}",
        )


def _measure_once(
    batch: _RunningBatch,
    full: ExitSchedule,
    schedule: ExitSchedule,
    repetitions: int,
    allowed: float,
) -> MeasuredSpeedup:
    pairs = [
        (batch.measure(full, seed), batch.measure(schedule, seed)) for seed in range(repetitions)
    ]
    deep, own = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    full_step, full_prompt = _medians(deep)
    own_step, own_prompt = _medians(own)
    steps = full_step / own_step
    times = [period.step_seconds for period in deep]
    return MeasuredSpeedup(
        schedule=schedule,
        steps=steps,
        prompt=full_prompt / own_prompt,
        prompt_share=full_prompt / (full_prompt + full_step),
        repetitions=repetitions,
        disturbed=disturbance(times, steps, allowed),
        spread=spread(times),
        rows=fmean(period.rows for period in own),
    )


def _medians(periods: Sequence[_Period]) -> tuple[float, float]:
    """Seconds of a step, and of the prompts that come between two."""
    return (
        median(period.step_seconds for period in periods),
        median(period.prompt_seconds for period in periods),
    )
