"""Speed of a schedule: estimated from bytes and arithmetic, calibrated, measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from ...runtime.generator import Generator
from ...runtime.measuring.bench import BEYOND_BYTES, Run, disturbance, spread, timed_run
from ...runtime.measuring.cost import CostModel
from ...runtime.schedule import ExitSchedule
from .inputs import SpeedupOf

_WARMUP_TOKENS = 4
_MOST_ROUNDS = 3  # of repetitions, until the machine is idle
_LEAST_SECONDS = 2.0  # minimum of a round at the speed of its fastest repetition,
_MOST_REPETITIONS = 50  # unless that takes more repetitions than these
_MOST_SLOWED = 2.0  # maximum ratio of a call to the sum of its fastest parts, on an idle machine

_Pair = tuple[Run, Run]  # at full depth and at the schedule


@dataclass(frozen=True)
class Speedups:
    """Speed-ups over full depth with the same number of tokens.

    ``call`` is of the whole call, prompt included, the default meaning of a speed-up; None if
    nothing was timed, as bytes don't predict the time of a prompt. ``steps`` is of the steps after
    the prompt. They apply to one row, or to several in flight, then with the prompts in between.
    """

    steps: float
    call: float | None

    def of(self, what: SpeedupOf) -> float:
        """Return the speed-up ``what``, which must be known."""
        value = self.call if what == "call" else self.steps
        assert value is not None, "FitConfig asks for timing where a goal is about calls"
        return value


@dataclass(frozen=True)
class MeasuredSpeedup:
    """Speed-ups over full depth, run alternately with it."""

    schedule: ExitSchedule
    steps: float  # of the steps after the prompt
    prompt: float  # of everything outside the steps
    prompt_share: float  # share of a full-depth call outside the steps, 0 … 1
    repetitions: int
    disturbed: str = ""  # evidence of other work on the machine, in every attempt to measure
    spread: float = 0.0  # of full depth's times

    @property
    def call(self) -> float:
        """Speed-up of the whole call: 3× in the steps, 1× in a prompt half as long make 1.5×."""
        return _combined(self.prompt_share, 1 / self.prompt, 1 / self.steps)

    def of(self, what: SpeedupOf) -> float:
        """Return the speed-up of the call, or of the steps of one row or of many."""
        return Speedups(self.steps, self.call).of(what)


@dataclass(frozen=True)
class SpeedModel:
    """Speed-ups at one prompt length and number of tokens, of the steps and of the whole call.

    The part ``fixed`` of a full-depth step's time is the same at every depth; the rest is
    proportional to the bytes read. The part ``prompt_fixed`` of a full-depth prompt is fixed; the
    rest is proportional to its multiply-adds. ``prompt_share`` is the prompt's share of a
    full-depth call; None if it was not measured.

    ``slots`` rows are in flight, each at any position of its text: a step reads each layer that any
    of them runs.
    """

    cost: CostModel
    prompt_length: int
    num_tokens: int
    fixed: float = 0.0
    prompt_fixed: float = 0.0
    prompt_share: float | None = None
    slots: int = 1

    def predicted(self, schedule: ExitSchedule) -> Speedups:
        """Predict from bytes, multiply-adds and the prompt's share if it is known."""
        return replace(self, fixed=0.0, prompt_fixed=0.0).expected(schedule)

    def expected(self, schedule: ExitSchedule) -> Speedups:
        """Apply the fixed parts: if bytes predict 4× and fixed is 0.2, 1 / (0.2 + 0.8/4) = 2.5×."""
        steps = _slowed(self.fixed, self._steps_part(schedule))
        if self.prompt_share is None:
            return Speedups(1 / steps, None)
        prompt = _slowed(self.prompt_fixed, self._prompt_part(schedule))
        return Speedups(1 / steps, _combined(self.prompt_share, prompt, steps))

    def allowed(self, schedule: ExitSchedule, what: SpeedupOf) -> float:
        """Return the maximum that bytes, and the prompt's multiply-adds, let ``schedule`` gain.

        A call consists of steps and a prompt, so it gains no more than the better of the two.
        """
        steps = 1 / self._steps_part(schedule)
        return max(steps, 1 / self._prompt_part(schedule)) if what == "call" else steps

    def calibrated(self, measured: MeasuredSpeedup) -> SpeedModel:
        """Choose the fixed parts so that the expected speed-ups match the measured ones.

        They are at least 0, so speed-ups beyond the bytes are not extrapolated: if few layers fit a
        cache that all layers exceed, the fastest schedule gains more, which says little about the
        schedules in between.
        """
        fixed = _fixed_part(self._steps_part(measured.schedule), 1 / measured.steps)
        prompt_fixed = _fixed_part(self._prompt_part(measured.schedule), 1 / measured.prompt)
        return replace(
            self,
            fixed=max(0.0, fixed),
            prompt_fixed=min(1.0, max(0.0, prompt_fixed)),
            prompt_share=measured.prompt_share,
        )

    def _steps_part(self, schedule: ExitSchedule) -> float:
        """Return bytes of the steps ÷ those at full depth."""
        if self.slots == 1:
            return 1 / self.cost.bytes_ratio(schedule, [self.prompt_length], self.num_tokens)
        own, full = (
            self.cost.running_step(entry, self.prompt_length, self.num_tokens, self.slots)
            for entry in (schedule, ExitSchedule.full(schedule.num_layers))
        )
        return (own.weights + own.kv) / (full.weights + full.kv)

    def _prompt_part(self, schedule: ExitSchedule) -> float:
        """Return multiply-adds of the prompt ÷ those at full depth; 1 unless ``prompt=decay``."""
        if schedule.prompt == "full":
            return 1.0
        lengths = [self.prompt_length]
        full = ExitSchedule.full(schedule.num_layers)
        return self.cost.prefill(schedule, lengths) / self.cost.prefill(full, lengths)


def measure_speedup(
    generator: Generator,
    prompt: Sequence[int],
    schedule: ExitSchedule,
    *,
    num_tokens: int,
    repetitions: int,
    allowed: float,
) -> MeasuredSpeedup:
    """Generate ``num_tokens`` ≥ 2 after ``prompt``, one row, at full depth and at ``schedule``.

    Each repetition runs both, so that drift of the machine's speed affects both; short calls of
    small models are repeated more often than ``repetitions``. The fastest repetition counts, for
    each step and for the part before the first: on a shared machine others take many times as long,
    prompts more often than the shorter steps. If a `disturbance` shows, given the speed-up of the
    steps that bytes ``allowed``, the measurement is repeated, three times in all; the result
    describes the disturbance of the calmest.
    """
    full = ExitSchedule.full(schedule.num_layers)
    for warming in (full, schedule):  # on a device this captures all graphs
        count = _WARMUP_TOKENS if generator.device is None else num_tokens
        timed_run(generator, [prompt], warming, min(count, num_tokens))
    pairs: list[_Pair] = []

    def measure_once() -> MeasuredSpeedup:
        added = _timed_pairs(generator, prompt, schedule, num_tokens, repetitions)
        pairs.extend(added)
        return _summary(schedule, pairs, added, allowed)

    found = calmest(measure_once, allowed)
    # The fastest parts of all rounds are at least as fast as those of the calmest.
    whole = _summary(schedule, pairs, pairs, allowed)
    return replace(whole, disturbed=found.disturbed, spread=found.spread)


def calmest(measure_once: Callable[[], MeasuredSpeedup], allowed: float) -> MeasuredSpeedup:
    """Measure up to three times until undisturbed; return the last or the calmest result.

    ``allowed`` is the speed-up of the steps that bytes allow.
    """
    rounds: list[MeasuredSpeedup] = []
    while len(rounds) < _MOST_ROUNDS and (not rounds or rounds[-1].disturbed):
        rounds.append(measure_once())
    if not rounds[-1].disturbed:
        return rounds[-1]
    return min(rounds, key=lambda entry: (entry.steps > BEYOND_BYTES * allowed, entry.spread))


def _timed_pairs(
    generator: Generator,
    prompt: Sequence[int],
    schedule: ExitSchedule,
    num_tokens: int,
    repetitions: int,
) -> list[_Pair]:
    """Time full depth and ``schedule`` alternately, at least ``repetitions`` times."""
    full = ExitSchedule.full(schedule.num_layers)
    pairs: list[_Pair] = []
    fastest = math.inf
    while len(pairs) < repetitions or (
        len(pairs) * fastest < _LEAST_SECONDS and len(pairs) < _MOST_REPETITIONS
    ):
        deep, own = (timed_run(generator, [prompt], each, num_tokens) for each in (full, schedule))
        pairs.append((deep, own))
        fastest = min(fastest, deep.wall_seconds + own.wall_seconds)
    return pairs


def _summary(
    schedule: ExitSchedule, pairs: Sequence[_Pair], last: Sequence[_Pair], allowed: float
) -> MeasuredSpeedup:
    """Compare the fastest parts of all ``pairs``; judge the machine by the ``last`` ones."""
    at_full_depth, at_schedule = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    full_steps, own_steps = _steady_seconds(at_full_depth), _steady_seconds(at_schedule)
    full_prompt, own_prompt = _prompt_seconds(at_full_depth), _prompt_seconds(at_schedule)
    if schedule.prompt == "full":  # both do the same work, so a difference is noise
        full_prompt = own_prompt = min(full_prompt, own_prompt)
    steps = full_steps / own_steps
    calls = [deep.wall_seconds for deep, _ in last]
    slowed = median(calls) / (full_prompt + full_steps)
    reasons = [disturbance(calls, steps, allowed)]
    if slowed > _MOST_SLOWED:
        reasons.append(f"calls take {slowed:.1f} times as long as their parts at their fastest")
    return MeasuredSpeedup(
        schedule=schedule,
        steps=steps,
        prompt=full_prompt / own_prompt,
        prompt_share=full_prompt / (full_prompt + full_steps),
        repetitions=len(pairs),
        disturbed="; ".join(filter(None, reasons)),
        spread=spread(calls),
    )


def _steady_seconds(runs: Sequence[Run]) -> float:
    """Sum the minima over the runs of each step; ((1, 9), (2, 2), (1, 3)): 1 + 2."""
    num_steps = len(runs[0].step_seconds)
    return sum(min(run.step_seconds[step] for run in runs) for step in range(num_steps))


def _prompt_seconds(runs: Sequence[Run]) -> float:
    """Return the minimum time of calls outside their steps."""
    return min(run.wall_seconds - run.decode_seconds for run in runs)


def _combined(prompt_share: float, prompt: float, steps: float) -> float:
    """Return the speed-up of a call whose prompt and steps take these parts of full depth's."""
    return 1 / (prompt_share * prompt + (1 - prompt_share) * steps)


def _slowed(fixed: float, part: float) -> float:
    return fixed + (1 - fixed) * part


def _fixed_part(part: float, measured: float) -> float:
    """Return ``fixed`` for which ``_slowed(fixed, part)`` is ``measured``; 0 at full depth."""
    return 0.0 if part == 1 else (measured - part) / (1 - part)
