"""``fit``: find the exit schedule that reaches a goal on the user's own data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ...engines.bundle import EngineBundle
from ...engines.errors import ScheduleError, SkipDecError
from ...engines.host.events import Events
from ...runtime.generator import Generator, OpenGenerator
from ...runtime.measuring.cost import CostModel
from ...runtime.schedule import ExitSchedule
from ...runtime.schedule.text import format_schedule
from .inputs import FitConfig, FitInputs, TargetSpeedup, prepare
from .search import (
    GeneratorScorer,
    LossDifference,
    ScheduleSearch,
    ScoredSchedule,
    SearchResult,
    excess_costs,
    loss_difference,
)
from .speed import MeasuredSpeedup, SpeedModel, Speedups, measure_speedup

_MOST_ATTEMPTS = 4  # schedules that may be measured before a target counts as missed
_NEAR = 0.95  # of a target
_MUCH_WORSE = 0.1  # nats per token, about 10 % of the perplexity
Measure = Callable[[ExitSchedule], MeasuredSpeedup]


@dataclass(frozen=True)
class Candidate:
    """A schedule scored on all examples."""

    schedule: ExitSchedule
    average_budget: float  # mean layers per generated token, up to the median completion
    loss: float  # nats per token
    over_full: LossDifference
    predicted: Speedups  # from bytes, and from multiply-adds for prompts
    expected: Speedups  # the same, or lower if the fastest candidate was measured slower


@dataclass(frozen=True)
class NearMiss:
    """A candidate below the target speed-up, with a lower loss than the chosen one."""

    schedule: ExitSchedule
    speedup: float  # as measured, else expected
    loss: float  # nats per token


@dataclass(frozen=True)
class Fit:
    """Result of a fit. ``front`` is Pareto-optimal in loss and speed, slowest first."""

    config: FitConfig
    inputs: FitInputs
    bundle: EngineBundle  # the bundle that ran
    speed: SpeedModel
    search: SearchResult
    full: Candidate
    front: tuple[Candidate, ...]
    others: tuple[Candidate, ...]  # scored on all examples, but dominated
    chosen: Candidate
    measured: MeasuredSpeedup | None  # of the chosen one; None without measuring
    rejected: tuple[MeasuredSpeedup, ...]  # expected to be fast enough, but measured slower
    near_miss: NearMiss | None  # the fastest below the target, if it has a lower loss


def fit(
    config: FitConfig,
    open_generator: OpenGenerator | None = None,
    events: Events | None = None,
) -> Fit:
    """Search for schedules, choose one, and check the choice by measurement.

    ``open_generator`` opens a bundle for ``config.rows`` concurrent rows; the default is
    ``Generator.open``. ``events`` receives the progress.

    Unless ``seconds`` is 0, a target speed-up applies to *measured* speed, of the whole call unless
    ``speedup_of`` says otherwise. The fastest candidate is measured first, to correct the estimates
    from bytes and to refuse an impossible target before anything is scored. Then the candidate with
    the lowest loss is measured; if it is too slow, the required speed-up is raised by the shortfall
    and the next candidate is tried. Rows in flight (``mixed``) are not timed: bytes predict their
    steps.

    Raises the errors of ``prepare`` before any work, and SkipDecError with the nearest miss for a
    goal that can't be met.
    """
    FitConfig.require(config)
    inputs = prepare(config)
    events = events or Events()
    open_generator = open_generator or partial(Generator.open, max_batch_size=config.rows)
    events.planned("", inputs.data.warnings)
    with open_generator(config.bundle) as generator:
        return _Fitting(config, inputs, generator, events).run()


class _Fitting:
    """One run of ``fit``."""

    def __init__(
        self, config: FitConfig, inputs: FitInputs, generator: Generator, events: Events
    ) -> None:
        self._config, self._inputs = config, inputs
        self._generator, self._events = generator, events
        cost = CostModel(generator.bundle.manifest, on_device=generator.device is not None)
        self._by_bytes = SpeedModel(cost, len(inputs.prompt), inputs.num_tokens, slots=config.rows)

    def run(self) -> Fit:
        config, inputs = self._config, self._inputs
        speed = self._speed_model()
        search = ScheduleSearch(
            inputs.space,
            GeneratorScorer(self._generator, inputs.examples),
            lambda schedule: speed.expected(schedule).of(config.speedup_of),
            config.search,
            self._events.advance,
        )
        self._events.stage("searching")
        full = search.score_fully(ExitSchedule.full(self._generator.model.num_layers))
        fastest = map(search.score_fully, inputs.space.fastest())  # the search may never reach them
        own = [inputs.own_schedule] if config.space.allows(inputs.own_schedule) else []
        named = (full, *fastest, *map(search.score_fully, own))
        known = {entry.schedule: entry for entry in named}
        result = search.run()
        candidates = list((known | {entry.schedule: entry for entry in result.finalists}).values())
        chosen, measured, rejected = choose(
            config, candidates, full, self._measure, is_exhaustive=result.is_exhaustive
        )
        missed = near_miss(config, candidates, chosen, rejected)
        ordered = sorted(candidates, key=lambda entry: entry.speedup)
        excess = excess_costs([(entry.speedup, entry.mean_loss) for entry in ordered])
        described = [self._describe(entry, full, speed) for entry in ordered]
        pairs = list(zip(described, excess, strict=True))
        return Fit(
            config=config,
            inputs=inputs,
            bundle=self._generator.bundle,
            speed=speed,
            search=result,
            full=self._describe(full, full, speed),
            front=tuple(candidate for candidate, over in pairs if over == 0),
            others=tuple(candidate for candidate, over in pairs if over > 0),
            chosen=self._describe(chosen, full, speed),
            measured=measured,
            rejected=rejected,
            near_miss=missed,
        )

    def _speed_model(self) -> SpeedModel:
        """Return a model corrected by timing the fastest schedule; refuse unreachable targets."""
        goal, of, speed = self._config.goal, self._config.speedup_of, self._by_bytes
        fastest = self._inputs.space.fastest()[0]
        allowed = speed.allowed(fastest, of)
        is_beyond = isinstance(goal, TargetSpeedup) and allowed < goal.value
        reached = ""
        if self._config.is_timed and not is_beyond:
            tries_decay = "decay" in self._config.space.prompts
            measured = self._measure(_with_prompt_decay(fastest) if tries_decay else fastest)
            speed = speed.calibrated(measured)
            reached = f" and {speed.expected(fastest).of(of):.3f}× as measured"
            if disturbed := measured.ratio(of).disturbed:
                reached += f" (disturbed: {disturbed})"
        if not isinstance(goal, TargetSpeedup) or (
            not is_beyond and speed.expected(fastest).of(of) >= goal.value
        ):
            return speed
        raise SkipDecError(
            f"--target-speedup {goal.value:g}",
            f"can't be met: in {self._config.speedup_name}, the fastest candidate, "
            f"{format_schedule(fastest)}, reaches at most {allowed:.3f}× by the bytes it "
            f"reads{reached}; nothing was scored; ask for less, or allow more --placement"
            f"{self._config.prompt_advice}",
        )

    def _measure(self, schedule: ExitSchedule) -> MeasuredSpeedup:
        self._events.stage("timing")
        self._events.status(format_schedule(schedule))
        return measure_speedup(
            self._generator,
            self._inputs.prompt,
            schedule,
            num_tokens=self._inputs.num_tokens,
            seconds=self._config.seconds,
            cost=self._by_bytes.cost,
        )

    def _describe(
        self, entry: ScoredSchedule, full: ScoredSchedule, speed: SpeedModel
    ) -> Candidate:
        return Candidate(
            schedule=entry.schedule,
            average_budget=entry.schedule.average_budget(self._inputs.num_tokens),
            loss=entry.mean_loss,
            over_full=loss_difference(entry, full),
            predicted=speed.predicted(entry.schedule),
            expected=speed.expected(entry.schedule),
        )


def choose(
    config: FitConfig,
    candidates: Sequence[ScoredSchedule],
    full: ScoredSchedule,
    measure: Measure,
    *,
    is_exhaustive: bool,
) -> tuple[ScoredSchedule, MeasuredSpeedup | None, tuple[MeasuredSpeedup, ...]]:
    """Return the best of ``candidates``, its measurement, and measurements of those too slow.

    Raises SkipDecError if the goal is not reached; unless ``is_exhaustive``, a larger search may
    reach it.
    """
    goal = config.goal
    ranked = goal.ranked(candidates, full.mean_loss, is_exhaustive=is_exhaustive)
    if not config.is_timed:
        return ranked[0], None, ()
    if not isinstance(goal, TargetSpeedup):
        return ranked[0], measure(ranked[0].schedule), ()
    rejected: list[tuple[ScoredSchedule, MeasuredSpeedup]] = []
    needed = goal.value
    while len(rejected) < _MOST_ATTEMPTS:
        tried = [entry for entry, _ in rejected]
        fast_enough = [each for each in ranked if each.speedup >= needed and each not in tried]
        if not fast_enough:
            break
        measured = measure(fast_enough[0].schedule)
        reached = measured.of(config.speedup_of)
        if reached >= goal.value:
            return fast_enough[0], measured, tuple(entry for _, entry in rejected)
        rejected.append((fast_enough[0], measured))
        if reached > 0:  # undisturbed: otherwise the shortfall says little about other candidates
            needed = fast_enough[0].speedup * goal.value / reached
    nearest, measured = max(rejected, key=lambda entry: entry[1].of(config.speedup_of))
    ratio = measured.ratio(config.speedup_of)
    came = f"was measured at {ratio.value:.3f}× [{ratio.low:.3f}, {ratio.high:.3f}]"
    if ratio.disturbed:
        came = f"was disturbed ({ratio.disturbed})"
    came += f" in {config.speedup_name}"
    raise goal.missed(nearest, came, is_exhaustive=is_exhaustive)


def near_miss(
    config: FitConfig,
    candidates: Sequence[ScoredSchedule],
    chosen: ScoredSchedule,
    rejected: Sequence[MeasuredSpeedup],
) -> NearMiss | None:
    """Return the fastest of ``candidates`` below the target with a lower loss than ``chosen``.

    Raises SkipDecError if ``chosen`` is much worse than one that misses the target by up to 5 %.
    """
    goal = config.goal
    if not isinstance(goal, TargetSpeedup):
        return None
    measured = {one.schedule: one.of(config.speedup_of) for one in rejected}
    below = [
        NearMiss(one.schedule, measured.get(one.schedule, one.speedup), one.mean_loss)
        for one in candidates
        if one.mean_loss < chosen.mean_loss
    ]
    slower = [one for one in below if one.speedup < goal.value]
    near = [one for one in slower if one.speedup >= _NEAR * goal.value]
    best = min(near, key=lambda one: one.loss, default=None)
    if best is not None and chosen.mean_loss - best.loss > _MUCH_WORSE:
        raise SkipDecError(
            f"--target-speedup {goal.value:g}",
            f"costs much: the best that reaches it, {format_schedule(chosen.schedule)}, has a loss "
            f"of {chosen.mean_loss:.4f} per token, but {format_schedule(best.schedule)} has "
            f"{best.loss:.4f} at {best.speedup:.3f}×; ask for {int(best.speedup * 100) / 100:g}, "
            f"or for --max-loss {chosen.mean_loss:.2f} if that loss is right for you",
        )
    return best or max(slower, key=lambda one: one.speedup, default=None)


def _with_prompt_decay(schedule: ExitSchedule) -> ExitSchedule:
    """Return the schedule with a decaying prompt, or unchanged if it can't have one.

    The steps stay the same, so timing it also shows what skipping layers in the prompt gains.
    """
    try:
        return ExitSchedule.from_document({**schedule.to_document(), "prompt": "decay"})
    except ScheduleError:
        return schedule
