"""The search space of a fit: the exit schedules from which it may choose."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby, product
from typing import Annotated, TypeVar

from pydantic import AfterValidator, Field

from ...engines.checking import Option, ValidatedConfig
from ...engines.errors import ScheduleError, did_you_mean
from ...runtime.schedule import ExitSchedule
from ...runtime.schedule.checks import PROMPT_DEPTHS
from ...runtime.schedule.decays import DECAYS as ALL_DECAYS
from ...runtime.schedule.placements import PLACEMENTS as ALL_PLACEMENTS
from ...runtime.schedule.text import parse_schedule

T = TypeVar("T")

WARMUPS = (1, 0, 2, 3)

_MOST_EXIT_LAYERS = 24  # deeper models take every second layer, or third, …


DECAYS = ("linear", "cosine", "power:power=2", "exponential:rate=3")
PLACEMENTS = ("top", "bottom", "unified", "unified-nested", "hierarchical", "d3:tail=2")


def _each_once(values: tuple[T, ...]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(values))


_Choices = Annotated[tuple[T, ...], AfterValidator(_each_once), Field(min_length=1)]


class SpaceConfig(ValidatedConfig):
    """Choices of a search. Decays and placements are ``NAME`` or ``NAME:OPTION=VALUE``.

    Max and min exit layer always vary. Equal ones are the constant decay, which therefore need not
    be named. Decay on the prompt gains nothing in the steps after it, so it is only tried if named.
    """

    decays: Annotated[_Choices[str], Option("--decay", show_default=False)] = Field(
        default=DECAYS, description="repeat: linear, power:power=2, … (four of them)"
    )
    placements: Annotated[_Choices[str], Option("--placement", show_default=False)] = Field(
        default=PLACEMENTS, description="repeat: top, d3:tail=2, … (all)"
    )
    warmups: _Choices[Annotated[int, Field(ge=0)]] = Field(
        default=WARMUPS, description="repeat (0, 1, 2, 3)"
    )
    prompts: Annotated[_Choices[str], Option("--prompt", show_default=False)] = Field(
        default=PROMPT_DEPTHS[:1],
        description="repeat: full, decay, for models tuned with it (full)",
    )

    def allows(self, schedule: ExitSchedule) -> bool:
        """Return True if the names in ``schedule`` are among the choices.

        Its horizon, exit layers and the options of its decay and placement are ignored.
        """
        decays = {"constant", *(text.partition(":")[0] for text in self.decays)}
        placements = {text.partition(":")[0] for text in self.placements}
        return (
            schedule.decay in decays
            and schedule.placement in placements
            and schedule.warmup_layers in self.warmups
            and schedule.prompt in self.prompts
        )

    def _problems(self) -> Iterator[str]:
        varying = [name for name in ALL_DECAYS if name != "table"]
        for field, allowed, choices in (
            ("decays", varying, self.decays),
            ("placements", ALL_PLACEMENTS, self.placements),
            ("prompts", PROMPT_DEPTHS, self.prompts),
        ):
            for choice in choices:
                if (name := choice.partition(":")[0]) not in allowed:
                    meant = did_you_mean(name, allowed)
                    yield f"`{field}` is {choice!r}; {meant}allowed: {', '.join(allowed)}"


@dataclass(frozen=True, order=True)
class Point:
    """The choices of one candidate; several points may give the same schedule."""

    max_exit_layer: int
    min_exit_layer: int
    warmup: int
    decay: str
    placement: str
    prompt: str = "full"

    def text(self, horizon: int) -> str:
        """Return the schedule's text form."""
        decay, _, decay_options = self.decay.partition(":")
        placement, _, placement_options = self.placement.partition(":")
        options = [
            f"max={self.max_exit_layer}",
            f"min={self.min_exit_layer}",
            f"warmup={self.warmup}",
            f"horizon={horizon}",
            f"placement={placement}",
            placement_options,
        ]
        if self.max_exit_layer == self.min_exit_layer:
            decay, options[3] = "constant", "horizon=1"
        else:
            options.append(decay_options)
        if self.prompt != "full":
            options.append(f"prompt={self.prompt}")
        return f"{decay}:{','.join(filter(None, options))}"


class SearchSpace:
    """All points of a model of ``num_layers`` at one ``horizon``, and their neighbourhood.

    With the defaults, 12 layers have 6,624 points and, at a horizon of 26, 2,959 different
    schedules. Schedules are created on request, because those of deep models take time.

    Raises ScheduleError for a chosen decay, placement or warm-up that is invalid with all exit
    layers.
    """

    def __init__(self, config: SpaceConfig, *, num_layers: int, horizon: int) -> None:
        stride = -(-num_layers // _MOST_EXIT_LAYERS)
        self._exits = tuple(range(num_layers, 0, -stride))[::-1]
        self._config = config
        self._num_layers = num_layers
        self._horizon = horizon
        self._schedules: dict[Point, ExitSchedule | None] = {}
        full = ExitSchedule.full(num_layers)
        self._representatives: dict[tuple[object, ...], ExitSchedule] = {_layers_run(full): full}
        self._check_choices()

    def points(self) -> list[Point]:
        """Return every combination, including those that give no schedule."""
        return [
            Point(largest, smallest, warmup, decay, placement, prompt)
            for prompt in self._config.prompts
            for placement in self._config.placements
            for warmup in self._config.warmups
            for largest in self._exits
            for smallest in self._exits
            if smallest <= largest
            for decay in (self._config.decays if smallest < largest else self._config.decays[:1])
        ]

    def shuffled(self, seed: int) -> list[Point]:
        """Return all points shuffled by ``seed``, those of the first prompt rule first.

        The effect of a prompt rule depends little on other choices, so later rules are only tried
        as neighbours of good points.
        """
        points = self.points()
        random.Random(seed).shuffle(points)
        return sorted(points, key=lambda point: self._config.prompts.index(point.prompt))

    def schedule(self, point: Point) -> ExitSchedule | None:
        """Return the schedule of ``point``; None if its choices are incompatible.

        Points that run the same layers for every token get the same object: for example, the
        warm-up has no effect with placement bottom, and no choice has any at full depth.
        """
        if point not in self._schedules:
            self._schedules[point] = self._make(point)
        return self._schedules[point]

    def neighbours(self, point: Point) -> Iterator[Point]:
        """Yield points that differ in one choice: an exit layer or warm-up by one step, or a name.

        Both exit layers may also move together.
        """
        high, low = (
            self._exits.index(layer) for layer in (point.max_exit_layer, point.min_exit_layer)
        )
        for more, less in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, -1), (1, -1), (-1, 1)):
            if 0 <= low + less <= high + more < len(self._exits):
                yield replace(
                    point,
                    max_exit_layer=self._exits[high + more],
                    min_exit_layer=self._exits[low + less],
                )
        warmups = sorted(self._config.warmups)
        at = warmups.index(point.warmup)
        for warmup in (*warmups[max(0, at - 1) : at], *warmups[at + 1 : at + 2]):
            yield replace(point, warmup=warmup)
        renamed = (
            *(replace(point, decay=name) for name in self._config.decays),
            *(replace(point, placement=name) for name in self._config.placements),
            *(replace(point, prompt=name) for name in self._config.prompts),
        )
        yield from (other for other in renamed if other != point)

    def fastest(self) -> tuple[ExitSchedule, ...]:
        """Return the schedules with fewest layers, prompt included.

        They are equally fast, because all layers have the same size, but may run different layers,
        e.g. only the last or only the first.
        """
        constant = (
            point for point in self.points() if point.max_exit_layer == point.min_exit_layer
        )

        def depth(point: Point) -> tuple[int, bool]:
            return point.max_exit_layer, point.prompt == "full"

        for _, points in groupby(sorted(constant, key=depth), key=depth):
            if found := dict.fromkeys(filter(None, map(self.schedule, points))):
                return tuple(found)
        raise AssertionError("each choice makes a schedule at the deepest exit layers")

    def _make(self, point: Point) -> ExitSchedule | None:
        try:
            schedule = parse_schedule(point.text(self._horizon), num_layers=self._num_layers)
        except ScheduleError:
            return None
        return self._representatives.setdefault(_layers_run(schedule), schedule)

    def _check_choices(self) -> None:
        """Check that each explicit choice gives a schedule at the deepest exit layers.

        Defaults that give none, as in a model with few layers, are dropped.
        """
        decays, placements, warmups, prompts = (
            getattr(self._config, name) for name in SpaceConfig.model_fields
        )
        deepest, next_deepest = self._exits[-1], self._exits[max(-2, -len(self._exits))]
        pairs = list(product(warmups, placements))
        constant = [
            Point(deepest, deepest, warmup, "linear", placement) for warmup, placement in pairs
        ]
        tried = {
            "decays": [
                [Point(deepest, next_deepest, warmup, decay, "top") for warmup in warmups]
                for decay in decays
                if decay != "constant"
            ],
            "placements": [
                [each for each in constant if each.placement == one] for one in placements
            ],
            "warmups": [[each for each in constant if each.warmup == warmup] for warmup in warmups],
            "prompts": [
                [
                    Point(next_deepest, next_deepest, warmup, "linear", placement, prompt)
                    for warmup, placement in pairs
                ]
                for prompt in prompts
                if prompt != "full"
            ],
        }
        problems: dict[str, None] = {}
        chosen = (
            points
            for field in tried
            if field in self._config.model_fields_set
            for points in tried[field]
        )
        for points in chosen:
            errors = [self._problems(point) for point in points]
            if all(errors):
                problems |= dict.fromkeys(errors[0])
        if problems:
            raise ScheduleError("fit", *problems)

    def _problems(self, point: Point) -> tuple[str, ...]:
        try:
            parse_schedule(point.text(self._horizon), num_layers=self._num_layers)
        except ScheduleError as error:
            return error.problems
        return ()


def _layers_run(schedule: ExitSchedule) -> tuple[object, ...]:
    """Return a key that is equal for schedules that run the same layers for every token."""
    return schedule.segments, schedule.prompt_plans
