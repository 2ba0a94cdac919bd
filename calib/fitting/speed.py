"""Speed of a schedule: estimated from bytes and arithmetic, calibrated, measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...runtime.generator import Generator
from ...runtime.measuring.bench import timed_run
from ...runtime.measuring.cost import CostModel
from ...runtime.measuring.meter import Ratio, measure
from ...runtime.schedule import ExitSchedule
from .inputs import SpeedupOf

_WARMUP_TOKENS = 4


@dataclass(frozen=True)
class Speedups:
    """Speed-ups over full depth with the same number of tokens.

    ``call`` is that of the whole call, prompt included, which is the default meaning of a speed-up.
    It is None if nothing was timed, because bytes don't predict the time of a prompt. ``steps`` is
    that of the steps after the prompt. Both apply to one row, or to several in flight with prompts
    in between.
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
    """Speed-ups over full depth, measured in turns with it."""

    schedule: ExitSchedule
    call: Ratio  # of the whole call
    steps: Ratio  # of the steps after the prompt
    prompt: float  # of everything outside the steps
    prompt_share: float  # share of a full-depth call outside the steps, 0 … 1
    turns: int

    def ratio(self, what: SpeedupOf) -> Ratio:
        """Return the speed-up ``what``: of the call, or of the steps of one row or many."""
        return self.call if what == "call" else self.steps

    def of(self, what: SpeedupOf) -> float:
        """Return the value of the speed-up ``what``; 0 if other work disturbed it."""
        found = self.ratio(what)
        return 0.0 if found.disturbed else found.value


@dataclass(frozen=True)
class SpeedModel:
    """Speed-ups at one prompt length and number of tokens, of the steps and of the whole call.

    Times are fractions of full depth's. The steps read the fraction b of its bytes, the prompt
    takes the fraction m of its multiply-adds, and ``prompt_share`` is the prompt's share of a
    full-depth call, or None if it was not measured:

        steps  = fixed + (1 - fixed)·b
        prompt = prompt_fixed + (1 - prompt_fixed)·m
        call   = prompt_share·prompt + (1 - prompt_share)·steps

    Worked: if bytes predict 4×, b is 1/4; with ``fixed`` 0.2, 1 / (0.2 + 0.8/4) = 2.5×.

    ``slots`` rows are in flight, each at any position of its text; a step reads each layer that any
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
        """Predict from bytes and multiply-adds alone, and the prompt's share if it is known."""
        return replace(self, fixed=0.0, prompt_fixed=0.0).expected(schedule)

    def expected(self, schedule: ExitSchedule) -> Speedups:
        """Return the speed-ups including the fixed parts."""
        steps = self.fixed + (1 - self.fixed) * self._steps_part(schedule)
        if (share := self.prompt_share) is None:
            return Speedups(1 / steps, None)
        prompt = self.prompt_fixed + (1 - self.prompt_fixed) * self._prompt_part(schedule)
        return Speedups(1 / steps, 1 / (share * prompt + (1 - share) * steps))

    def allowed(self, schedule: ExitSchedule, what: SpeedupOf) -> float:
        """Return the largest speed-up that bytes and the prompt's multiply-adds allow.

        A call consists of a prompt and steps, so it gains no more than the better of the two.
        """
        steps = 1 / self._steps_part(schedule)
        return max(steps, 1 / self._prompt_part(schedule)) if what == "call" else steps

    def calibrated(self, measured: MeasuredSpeedup) -> SpeedModel:
        """Choose the fixed parts so that the expected speed-ups match the measured ones.

        If the steps were disturbed, bytes alone predict them. The parts are at least 0, so
        speed-ups that exceed the bytes' are not extrapolated: if the fastest schedule's few layers
        fit into a cache, it gains more, which says little about slower schedules.
        """
        part = self._steps_part(measured.schedule)
        steps = part if measured.steps.disturbed else 1 / measured.steps.value
        return replace(
            self,
            fixed=_fixed(part, steps),
            prompt_fixed=_fixed(self._prompt_part(measured.schedule), 1 / measured.prompt),
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
    seconds: float,
    cost: CostModel,
) -> MeasuredSpeedup:
    """Generate ``num_tokens`` ≥ 2 after ``prompt``, one row, at full depth and at ``schedule``.

    They take turns for at most ``seconds``; see `measure`. A speed-up that exceeds what the layers
    allow counts as disturbed.
    """
    full = ExitSchedule.full(schedule.num_layers)
    for warming in (full, schedule):  # on a device, this captures all graphs
        count = _WARMUP_TOKENS if generator.device is None else num_tokens
        timed_run(generator, [prompt], warming, min(count, num_tokens))
    layers: dict[ExitSchedule, Sequence[int]] = {}

    def turn(_: int) -> dict[tuple[ExitSchedule, str], float]:
        found: dict[tuple[ExitSchedule, str], float] = {}
        for each in (full, schedule):
            run = timed_run(generator, [prompt], each, num_tokens)
            layers[each] = run.layers_per_token
            found[each, "call"], found[each, "steps"] = run.wall_seconds, run.decode_seconds
            # In its own call, because on a busy machine a call's first part waits for the last
            # call.
            found[each, "prompt"] = timed_run(generator, [prompt], each, 1).wall_seconds
        return found

    pairs = [((schedule, part), (full, part)) for part in ("call", "steps")]
    turns = measure(turn, pairs, seconds=seconds)
    ratios = []
    for pair, first in zip(pairs, (0, 1), strict=True):  # the prompt yields the first token
        ratio = sum(layers[full][first:]) / sum(layers[schedule][first:])
        ratios.append(turns.ratio(*pair).within(cost.most_speedup(schedule, ratio), "layers allow"))
    call, steps = ratios
    of_prompt = turns.ratio((schedule, "prompt"), (full, "prompt")).value
    return MeasuredSpeedup(
        schedule=schedule,
        call=call,
        steps=steps,
        prompt=1.0 if schedule.prompt == "full" else of_prompt,  # the same work
        prompt_share=min(1.0, turns.ratio((full, "call"), (full, "prompt")).value),
        turns=len(turns.turns),
    )


def _fixed(part: float, measured: float) -> float:
    """Return the f from 0 to 1 for which f + (1 - f)·``part`` is nearest to ``measured``."""
    return 0.0 if part == 1 else min(1.0, max(0.0, (measured - part) / (1 - part)))
