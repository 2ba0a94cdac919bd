"""Choose the schedule of a training step: the target, a mixture, or a curriculum towards it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import Protocol

from ...runtime.schedule import ExitSchedule
from ...runtime.schedule.rule import round_half_up


class StepSchedules(Protocol):
    """A function of the step only, so that resumed runs and all processes agree."""

    def at(self, step: int, num_steps: int) -> ExitSchedule:
        """Return the schedule of optimizer step ``step``, 0 ≤ step < num_steps."""


class TargetOnly:
    """Runs the target in every step."""

    def __init__(self, target: ExitSchedule) -> None:
        self._target = target

    def at(self, step: int, num_steps: int) -> ExitSchedule:
        """Return the target."""
        return self._target


class Mixture:
    """Draws one of several schedules per step, all equally likely, from seed and step."""

    def __init__(self, schedules: Sequence[ExitSchedule], seed: int) -> None:
        self._schedules = tuple(dict.fromkeys(schedules))
        self._seed = seed

    def at(self, step: int, num_steps: int) -> ExitSchedule:
        """Return the schedule drawn for ``step``."""
        return random.Random(f"{self._seed}:{step}").choice(self._schedules)


class Curriculum:
    """Shrinks depth from full to the target over the first ``fraction`` of the steps.

    There is one stage per layer saved in the end: 12 layers to a target with min 4 take 8 stages
    and then reach the target. ``fraction=0.5`` of 160 steps: a stage takes 10.
    """

    def __init__(self, target: ExitSchedule, fraction: float) -> None:
        self._target = target
        self._fraction = fraction

    def at(self, step: int, num_steps: int) -> ExitSchedule:
        """Return the schedule of the stage of ``step``; the target after the last one."""
        stages = self._target.num_layers - self._target.min_exit_layer
        stage = int(step / (self._fraction * num_steps) * stages)
        return self._target if stage >= stages else _between(self._target, Fraction(stage, stages))


@cache
def _between(target: ExitSchedule, progress: Fraction) -> ExitSchedule:
    """Return the schedule whose budgets are ``progress`` of the way from full depth to the
    target's.

    12 layers, budgets 8 6 4, half way: 10 9 8.
    """
    num_layers = target.num_layers

    def budget(final: int) -> int:
        return round_half_up(num_layers - (num_layers - final) * progress)

    table = tuple(budget(target.budget(index)) for index in range(target.horizon))
    return target.changed(
        decay="table",
        table=table,
        max_exit_layer=table[0],
        min_exit_layer=budget(target.min_exit_layer),
    )


def step_schedules(
    target: ExitSchedule, *, curriculum: float | None, mixture: Sequence[ExitSchedule], seed: int
) -> StepSchedules:
    """Return the schedules that a tuning's options select; a ``mixture`` also has full depth."""
    if curriculum is not None:
        return Curriculum(target, curriculum)
    if not mixture:
        return TargetOnly(target)
    return Mixture((ExitSchedule.full(target.num_layers), target, *mixture), seed)
