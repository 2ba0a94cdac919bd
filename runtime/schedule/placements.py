"""Placements: which layers a budget runs.

A rule's docstring says which part is a paper's and which is ours. L is the number of layers, w the
warm-up, b the budget; layers are 0 … L−1. With any rule, b = L runs every layer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar

from typing_extensions import override

from ...engines.errors import shown
from .rule import Rule, ScheduleFields, round_half_up


class Placement(Rule, ABC):
    """A rule for the layers of a budget.

    ``hole_advice`` says what to do about sets of layers that are not nested.
    """

    hole_advice: ClassVar[str] = ""

    @override
    def problems(self, schedule: ScheduleFields) -> list[str]:
        # By default the top layer always runs, so the smallest budget is above the warm-up.
        if schedule.min_exit_layer <= schedule.warmup_layers:
            return [
                f"min_exit_layer is {schedule.min_exit_layer}; allowed with placement "
                f"{schedule.placement}: above warmup_layers, {schedule.warmup_layers}"
            ]
        return []

    @abstractmethod
    def layers(self, schedule: ScheduleFields, budget: int) -> tuple[int, ...]:
        """Return the ``budget`` layers that run, lowest first."""


@dataclass(frozen=True)
class Top(Placement):
    """Warm-up layers, then the top ones (SkipDecode, arXiv 2307.02628).

    {0..w-1} ∪ {L-(b-w)..L-1}. L=12, w=1: budget 6 runs 0, 7–11; budget 4 runs 0, 9–11.
    Lower-to-middle layers are bypassed.
    """

    @override
    def layers(self, schedule: ScheduleFields, budget: int) -> tuple[int, ...]:
        warmup = schedule.warmup_layers
        top = schedule.num_layers - (budget - warmup)
        return (*range(warmup), *range(top, schedule.num_layers))


@dataclass(frozen=True)
class Bottom(Placement):
    """The lowest layers (early termination, the baseline): {0..b-1}.

    L=12: budget 6 runs 0–5, budget 4 runs 0–3; warm-up layers are among the lowest anyway.
    """

    @override
    def problems(self, schedule: ScheduleFields) -> list[str]:
        return []

    @override
    def layers(self, schedule: ScheduleFields, budget: int) -> tuple[int, ...]:
        return tuple(range(budget))


class EvenlySpread(Placement):
    """Layers from the first to the last, both of which always run."""

    @override
    def problems(self, schedule: ScheduleFields) -> list[str]:
        problems = super().problems(schedule)
        if not problems and schedule.min_exit_layer < 2:
            return [
                f"min_exit_layer is {schedule.min_exit_layer}; allowed with placement "
                f"{schedule.placement}: 2 or more, the first and the last layer always run"
            ]
        return problems


@dataclass(frozen=True)
class Unified(EvenlySpread):
    """Evenly spread layers, the first and the last among them (arXiv 2404.06954).

    The paper's, from its abstract: the number of skipped layers follows from the target speed-up
    alone, and intermediate layers are skipped in a balanced manner. Ours: the rounding, and
    warm-up layers beyond the first. With v = max(w, 1), since layer 0 always runs:

        {0..v-1} ∪ {v-1 + round_half_up(j·(L-v) / (b-v)), j = 1..b-v}

    L=12, w=1: budget 4 steps by 11/3, so 0, 3.67, 7.33, 11 and it runs 0, 4, 7, 11; budget 6 runs
    0, 2, 4, 7, 9, 11. Layer 4 is in both, but budget 5 runs 0, 3, 6, 8, 11: the sets are not
    nested, so this placement goes with the decay constant.
    """

    hole_advice = "take the decay constant, e.g. constant:max=4, or placement unified-nested"

    @override
    def layers(self, schedule: ScheduleFields, budget: int) -> tuple[int, ...]:
        lowest = max(schedule.warmup_layers, 1)
        steps = budget - lowest
        span = schedule.num_layers - lowest
        spread = (
            lowest - 1 + round_half_up(Fraction(j * span, steps)) for j in range(1, steps + 1)
        )
        return (*range(lowest), *spread)


@dataclass(frozen=True)
class UnifiedNested(EvenlySpread):
    """Evenly spread layers whose smaller sets lie in the larger ones: ours, after ``unified``.

    Layers join in a fixed order, and a budget runs the first b of it: 0..max(w, 1)−1 and L−1,
    then repeatedly the middle layer (the lower of two) of the widest gap (the highest of equals).
    Any decay may run it.

    L=12, w=1: the order is 0 11 5 8 2 9 6 3 10 7 4 1. Budget 4 runs 0, 5, 8, 11; budget 5 adds
    layer 2, budget 6 layer 9. The gaps of budget 4 are 5, 3, 3, where unified has 4, 3, 4: the
    price of nesting.
    """

    @override
    def layers(self, schedule: ScheduleFields, budget: int) -> tuple[int, ...]:
        order = _halving_order(schedule.num_layers, max(schedule.warmup_layers, 1))
        return tuple(sorted(order[:budget]))


@lru_cache(maxsize=64)
def _halving_order(num_layers: int, lowest: int) -> tuple[int, ...]:
    """Return the order in which ``unified-nested`` adds layers to ``lowest`` ones and the last.

    >>> _halving_order(6, 1)
    (0, 5, 2, 3, 4, 1)
    """
    order = [*range(lowest), num_layers - 1]
    while len(order) < num_layers:
        chosen = sorted(order)
        _, low, high = max((high - low, low, high) for low, high in pairwise(chosen))
        order.append((low + high) // 2)
    return tuple(order)


@dataclass(frozen=True)
class Hierarchical(Placement):
    """Every second layer, then every fourth, … (after Hierarchical Skip Decoding, 2403.14919).

    The paper's, from its abstract: layers are skipped in a hierarchical manner that depends on the
    length reached; from a published summary of its section on the method: with s layers skipped
    between two, the layers that run are those whose number is a multiple of s + 1. Its full text
    was unavailable. Ours: s + 1 is a power of two (multiples of 3 are not among those of 2:
    holes), layers are numbered from the last one down, so that it always runs, warm-up layers run
    as well, and a budget between two levels keeps the higher layers of the level that is leaving.

        level(l) = how often 2 divides L−1−l (the last layer: above all others)
        runs the warm-up layers, then the layers of the highest level, upper ones first

    L=12, w=1: the order is 0 (warm-up), 11, 3 (every 8th), 7 (every 4th), 9, 5, 1 (every second),
    10, 8, 6, 4, 2. Budget 7 runs 0, 1, 3, 5, 7, 9, 11; budget 4 runs 0, 3, 7, 11; in between,
    budget 5 runs 0, 3, 7, 9, 11.
    """

    @override
    def layers(self, schedule: ScheduleFields, budget: int) -> tuple[int, ...]:
        warmup = schedule.warmup_layers
        others = sorted(
            range(warmup, schedule.num_layers),
            key=lambda layer: (_level(schedule.num_layers - 1 - layer), layer),
            reverse=True,
        )
        return tuple(sorted((*range(warmup), *others[: budget - warmup])))


def _level(distance: int) -> int:
    """Return the exponent of 2 in ``distance``: 8 → 3, 6 → 1, 5 → 0; 0 has the largest."""
    return (distance & -distance).bit_length() - 1 if distance else 1 << 30


@dataclass(frozen=True)
class D3(Placement):
    """Core layers at both ends run, those between them are skipped (after D3, arXiv 2503.08524).

    The paper's: head and tail layers are core and always run, the flexible ones in the middle are
    skipped, more of them with each token (the decay d3: ⌊L·αⁱ⌋ layers run). Its full text was
    unavailable; this is from its abstract and published summaries. Ours: the head's core is the
    warm-up, the tail's has the size ``tail``, and the skipped layers are one block centred in the
    flexible ones:

        {0..s-1} ∪ {s+L-b..L-1} with s = w + ⌊(b-w-tail) / 2⌋

    L=12, w=2, tail=3: layers 2–8 are flexible. Budget 12 runs all; 9 skips 4–6 and runs 0–3, 7–11;
    6 skips 2–7 and runs 0, 1, 8–11; 5, the minimum, runs the core 0, 1, 9–11.
    """

    tail: int

    @override
    def problems(self, schedule: ScheduleFields) -> list[str]:
        tail, warmup = self.tail, schedule.warmup_layers
        if type(tail) is not int or tail < 1:
            return [f"tail is {shown(tail)}; placement d3 needs an integer, 1 or more, e.g. 2"]
        if schedule.min_exit_layer < warmup + tail:
            return [
                f"min_exit_layer is {schedule.min_exit_layer}; allowed with placement d3: "
                f"{shown(warmup + tail)} or more, the core of warmup_layers, {warmup}, and tail, "
                f"{shown(tail)}"
            ]
        return []

    @override
    def layers(self, schedule: ScheduleFields, budget: int) -> tuple[int, ...]:
        warmup, num_layers = schedule.warmup_layers, schedule.num_layers
        start = warmup + (budget - warmup - self.tail) // 2
        return (*range(start), *range(start + num_layers - budget, num_layers))


PLACEMENTS: Mapping[str, type[Placement]] = {
    "top": Top,
    "bottom": Bottom,
    "unified": Unified,
    "unified-nested": UnifiedNested,
    "hierarchical": Hierarchical,
    "d3": D3,
}
