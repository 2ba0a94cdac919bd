"""Choose the scored candidate that reaches the goal when measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
from measured_speedups import measured_as

from skipdec.calib.data.data import DataConfig
from skipdec.calib.fitting import fitting as fit
from skipdec.calib.fitting.inputs import FitConfig, Goal, MaxLoss, TargetSpeedup
from skipdec.calib.fitting.search import ScoredSchedule, loss_difference
from skipdec.calib.fitting.speed import (
    MeasuredSpeedup,
    SpeedModel,
    SpeedupOf,
    Speedups,
    measure_speedup,
)
from skipdec.engines.errors import SkipDecError, UsageError
from skipdec.runtime.measuring.bench import Run
from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.schedule.text import parse_schedule


def scored(text: str, speedup: float, loss: float) -> ScoredSchedule:
    schedule = parse_schedule(text, num_layers=12, horizon=16)
    return ScoredSchedule(schedule, speedup, [10, 20], [10 * loss, 20 * loss])


FULL = scored("full", 1.0, 1.00)
SLOW = scored("constant:max=8", 1.5, 0.90)
MIDDLE = scored("constant:max=6", 2.0, 1.10)
FAST = scored("constant:max=4", 3.0, 1.40)
ALL = [FULL, SLOW, MIDDLE, FAST]

choose = partial(fit.choose, is_exhaustive=True)


def config(goal: Goal, seconds: float = 1, speedup_of: SpeedupOf = "steps") -> FitConfig:
    return FitConfig(
        bundle=Path("bundle"),
        data=DataConfig(path=Path()),
        target_speedup=goal.value if isinstance(goal, TargetSpeedup) else None,
        max_loss=f"{'+' * goal.is_relative}{goal.value}" if isinstance(goal, MaxLoss) else None,
        seconds=seconds,
        speedup_of=speedup_of,
    )


def measuring(part: float) -> Callable[[ExitSchedule], MeasuredSpeedup]:
    """Make every schedule reach ``part`` of its expected speed-up."""
    expected = {entry.schedule: entry.speedup for entry in ALL}
    return lambda schedule: measured_as(schedule, part * expected[schedule])


@pytest.mark.parametrize(
    ("goal", "best"),
    [
        (TargetSpeedup(1.5), SLOW),
        (TargetSpeedup(1.6), MIDDLE),
        (TargetSpeedup(3.0), FAST),
        (MaxLoss(1.2, False), MIDDLE),
        (MaxLoss(0.9, False), SLOW),
        (MaxLoss(0.4, True), FAST),
        (MaxLoss(0.0, True), SLOW),
    ],
)
def test_the_best_within_the_constraint_is_chosen(goal: Goal, best: ScoredSchedule) -> None:
    assert choose(config(goal), ALL, FULL, measuring(1.0))[0] is best
    assert choose(config(goal, seconds=0), ALL, FULL, measuring(0.0)) == (best, None, ())


def test_a_candidate_measured_too_slow_is_replaced_by_a_faster_one() -> None:
    chosen, measured, rejected = choose(config(TargetSpeedup(1.5)), ALL, FULL, measuring(0.9))
    assert chosen is MIDDLE
    assert measured is not None
    assert measured.steps.value == pytest.approx(1.8)
    assert [entry.schedule for entry in rejected] == [SLOW.schedule]


def test_the_first_shortfall_rules_out_others_without_timing() -> None:
    chosen, _, rejected = choose(config(TargetSpeedup(1.5)), ALL, FULL, measuring(0.6))
    assert chosen is FAST, "2.0 × 0.6 would be too slow as well"
    assert len(rejected) == 1


def test_a_disturbed_measurement_rules_out_no_other_candidate() -> None:
    def measure(schedule: ExitSchedule) -> MeasuredSpeedup:
        is_slow = schedule == SLOW.schedule
        steps, disturbed = (9.0, "load of 12") if is_slow else (2.0, "")
        return measured_as(schedule, steps, lost=disturbed)

    chosen, _, rejected = choose(config(TargetSpeedup(1.5)), ALL, FULL, measure)
    assert chosen is MIDDLE, "an impossible speed does not rule out the faster candidate"
    assert [entry.schedule for entry in rejected] == [SLOW.schedule]


TWO_LAYERS = scored("constant:max=2", 4.0, 1.97)
NEAR = scored("constant:max=6", 1.297, 1.10)


def test_a_much_worse_schedule_is_refused_if_another_nearly_qualifies() -> None:
    candidates = [FULL, NEAR, TWO_LAYERS]
    with pytest.raises(SkipDecError) as error:
        fit.near_miss(config(TargetSpeedup(1.3)), candidates, TWO_LAYERS, ())
    assert "has a loss of 1.9700 per token, but constant:max=6" in str(error.value)
    assert "has 1.1000 at 1.297×; ask for 1.29, or for --max-loss 1.97" in str(error.value)


def test_a_candidate_measured_just_too_slow_is_a_near_miss() -> None:
    expected_more = scored("constant:max=6", 1.4, 1.10)
    rejected = (measured_as(expected_more.schedule, 1.28),)
    with pytest.raises(SkipDecError, match=r"has 1\.1000 at 1\.280×; ask for 1\.28"):
        fit.near_miss(config(TargetSpeedup(1.3)), [FULL, expected_more], TWO_LAYERS, rejected)


def test_a_better_schedule_just_below_the_target_is_reported() -> None:
    """2.0× has a loss of 1.10; the target of 2.5 takes 3.0×, which has 1.40."""
    missed = fit.near_miss(config(TargetSpeedup(2.5)), ALL, FAST, ())
    assert missed == fit.NearMiss(MIDDLE.schedule, 2.0, 1.10)
    assert fit.near_miss(config(TargetSpeedup(1.3)), ALL, SLOW, ()) is None, "none is better"
    assert fit.near_miss(config(MaxLoss(2, False)), ALL, FAST, ()) is None


def test_an_unreachable_speedup_reports_the_best_one() -> None:
    with pytest.raises(SkipDecError, match=r"target-speedup 3 .*constant:max=4.*2\.700×") as error:
        choose(config(TargetSpeedup(3.0)), ALL, FULL, measuring(0.9))
    assert error.value.exit_code == 1
    with pytest.raises(SkipDecError, match=r"is expected to reach 3\.000×"):
        choose(config(TargetSpeedup(4.0)), ALL, FULL, measuring(1.0))


@pytest.mark.parametrize(("text", "name"), [("0.5", r"max-loss 0\.5"), ("+0", r"max-loss \+0")])
def test_an_unreachable_loss_reports_the_lowest_one(text: str, name: str) -> None:
    with pytest.raises(SkipDecError, match=rf"{name} .*lowest loss, 1\.1000 .*full depth has 1\.0"):
        choose(config(MaxLoss.parse(text)), [MIDDLE, FAST], FULL, measuring(1.0))


@pytest.mark.parametrize(
    ("goal", "part"),
    [(TargetSpeedup(4.0), 1.0), (TargetSpeedup(3.0), 0.9), (MaxLoss(0.5, False), 1.0)],
    ids=["expected", "measured", "loss"],
)
@pytest.mark.parametrize("is_exhaustive", [True, False])
def test_a_larger_budget_is_advised_where_schedules_were_left_out(
    goal: Goal, part: float, is_exhaustive: bool
) -> None:
    with pytest.raises(SkipDecError) as error:
        fit.choose(config(goal), ALL, FULL, measuring(part), is_exhaustive=is_exhaustive)
    assert ("a larger --budget" in str(error.value)) != is_exhaustive


@pytest.mark.parametrize("text", ["much", "-1", "inf", "nan", "+-1"])
def test_an_invalid_loss_bound_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--max-loss"):
        MaxLoss.parse(text)


@pytest.mark.parametrize("value", [1.0, 0.0, math.inf, math.nan])
def test_an_invalid_speedup_target_is_refused(value: float) -> None:
    with pytest.raises(UsageError, match="--target-speedup"):
        TargetSpeedup(value)


def test_impossible_settings_are_refused_together() -> None:
    with pytest.raises(UsageError, match="3 problems"):
        FitConfig(
            bundle=Path("bundle"),
            data=DataConfig(path=Path()),
            target_speedup=2,
            num_examples=0,
            horizon=0,
            seconds=-1,
        )


class _Cost:
    """Counts a step's layers as bytes and a prompt's tokens as multiply-adds."""

    def bytes_ratio(self, schedule: ExitSchedule, lengths: list[int], num_tokens: int) -> float:
        return schedule.num_layers / schedule.average_budget(num_tokens - 1)

    def most_speedup(self, schedule: ExitSchedule, layers: float) -> float:
        return layers

    def prefill(self, schedule: ExitSchedule, lengths: list[int]) -> int:
        return sum(schedule.prompt_budget(at, lengths[0]) for at in range(lengths[0]))


FALLING = parse_schedule("constant:max=4,prompt=decay", num_layers=12)
COST: Any = _Cost()
UNTIMED = SpeedModel(COST, 9, 16)


@pytest.mark.parametrize(("measured", "fixed"), [(2.0, 0.25), (3.0, 0.0), (4.0, 0.0)])
def test_measurements_lower_the_estimate_from_bytes(measured: float, fixed: float) -> None:
    assert UNTIMED.expected(FAST.schedule) == Speedups(3.0, None)
    corrected = UNTIMED.calibrated(measured_as(FAST.schedule, measured))
    assert corrected.fixed == pytest.approx(fixed)
    assert corrected.expected(FAST.schedule).steps == pytest.approx(min(measured, 3.0))
    assert corrected.expected(FULL.schedule) == Speedups(1.0, 1.0)
    assert corrected.predicted(FAST.schedule).steps == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("prompt", "fixed"), [(1.5, 0.0), (1.2, 0.5), (1.0, 1.0), (0.8, 1.0), (9.0, 0.0)]
)
def test_the_speedup_of_a_call_counts_the_layers_of_its_prompt(prompt: float, fixed: float) -> None:
    measured = measured_as(FALLING, 3.0, prompt, 0.6)  # 12 layers fall to 4: 8 on average
    corrected = UNTIMED.calibrated(measured)
    assert corrected.prompt_fixed == pytest.approx(fixed)
    part = fixed + (1 - fixed) * 8 / 12
    expected = corrected.expected(FALLING)
    assert expected.call == pytest.approx(1 / (0.6 * part + 0.4 / 3))
    assert expected.steps == pytest.approx(3.0)
    kept = corrected.expected(FAST.schedule).call
    assert kept == pytest.approx(1 / (0.6 + 0.4 / 3)), "the prompt at full depth"
    assert corrected.predicted(FALLING).call == pytest.approx(1 / (0.6 * 8 / 12 + 0.4 / 3))


def test_a_goal_for_calls_compares_calls() -> None:
    def measure(schedule: ExitSchedule) -> MeasuredSpeedup:
        return measured_as(schedule, 9.0, share=0.5 if schedule == SLOW.schedule else 0.1)

    calls = config(TargetSpeedup(1.9), speedup_of="call")
    chosen, measured, rejected = choose(
        calls, [FULL, FAST, ScoredSchedule(SLOW.schedule, 1.9, [10], [9.0])], FULL, measure
    )
    assert [entry.schedule for entry in rejected] == [SLOW.schedule], "1.8× of the call"
    assert chosen is FAST
    assert measured is not None
    assert measured.call.value == pytest.approx(5.0)


def test_calls_cannot_be_fitted_without_timing() -> None:
    with pytest.raises(UsageError, match="seconds is 0, but the prompt's part"):
        config(TargetSpeedup(2), seconds=0, speedup_of="call")


def test_full_depth_and_the_schedule_take_turns() -> None:
    full, own = FULL.schedule, FAST.schedule
    runs = {
        full: Run(6.0, 2.0, (2.0, 2.0), (12, 12, 12)),
        own: Run(3.5, 2.0, (1.0, 0.5), (12, 4, 4)),
    }
    prompt = Run(2.0, 2.0, (), (12,))
    with patch(
        "skipdec.calib.fitting.speed.timed_run",
        side_effect=lambda _, __, schedule, count: runs[schedule] if count > 1 else prompt,
    ) as timed:
        result = measure_speedup(
            Mock(device=None), [5, 6], own, num_tokens=3, seconds=1e-9, cost=COST
        )
    assert (result.steps.value, result.call.value) == (
        pytest.approx(4.0 / 1.5),
        pytest.approx(6 / 3.5),
    )
    assert (result.prompt, result.prompt_share) == (1.0, pytest.approx(1 / 3))
    assert [call.args[2] for call in timed.call_args_list] == [
        full,
        own,
        *[full, full, own, own] * 3,
    ]
    assert result.turns == 3, "after a warm-up"


def test_a_speedup_beyond_the_skipped_layers_counts_as_disturbed() -> None:
    deep, own = Run(9.0, 1.0, (8.0,), (12, 12)), Run(2.0, 1.0, (1.0,), (12, 4))
    with patch(
        "skipdec.calib.fitting.speed.timed_run",
        side_effect=[deep, own, *[deep, deep, own, own] * 3],
    ):
        result = measure_speedup(
            Mock(device=None), [5], FAST.schedule, num_tokens=2, seconds=1e-9, cost=COST
        )
    assert result.steps.disturbed == "8.00× was measured, but layers allow at most 3.00×"
    assert result.of("steps") == result.of("call") == 0
    assert UNTIMED.calibrated(result).expected(FAST.schedule).steps == pytest.approx(3.0)


def test_differences_are_paired_by_example() -> None:
    base = ScoredSchedule(FULL.schedule, 1.0, [10, 10], [100.0, 5.0])
    other = ScoredSchedule(FAST.schedule, 3.0, [10, 10], [102.0, 9.0])
    difference = loss_difference(other, base)
    assert difference.value == pytest.approx(0.3)
    assert difference.standard_error == pytest.approx(0.1)
    alone = ScoredSchedule(FULL.schedule, 1.0, [10], [100.0])
    assert math.isnan(loss_difference(alone, alone).standard_error)


def test_a_target_applies_to_whole_calls_by_default() -> None:
    """A 3× of the steps is 1.36× for the caller if the prompt takes 60 % of a call."""
    by_default = FitConfig(
        bundle=Path("bundle"),
        data=DataConfig(path=Path()),
        target_speedup=1.5,
    )

    def measure(schedule: ExitSchedule) -> MeasuredSpeedup:
        return measured_as(schedule, 3.0, share=0.6)

    with pytest.raises(SkipDecError, match=r"measured at 1\.364× \[.*\] in the whole call"):
        choose(by_default, ALL, FULL, measure)
    assert by_default.prompt_advice.startswith(", or --prompt decay")
