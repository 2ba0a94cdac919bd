"""Which layers a budget runs: the placements of an exit schedule.

Each docstring says which part is a paper's and which is ours. L is the number of layers, w the
warm-up, b the budget; layers are 0 … L−1. Whatever the rule, b = L runs every layer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

from ...engines.registry import Registry
from .decay import round_half_up

if TYPE_CHECKING:
    from .schedule import ExitSchedule

PLACEMENTS = Registry(
    "placement",
    {
        "top": "runtime.schedule.placement:Top",
        "bottom": "runtime.schedule.placement:Bottom",
        "unified": "runtime.schedule.placement:Unified",
        "unified-nested": "runtime.schedule.placement:UnifiedNested",
        "hierarchical": "runtime.schedule.placement:Hierarchical",
        "d3": "runtime.schedule.placement:D3",
    },
)


class Placement(ABC):
    """One rule for the layers of a budget.

    ``parameter`` names the schedule's field that only this placement has. ``hole_advice`` is what
    to do where its sets are not nested.
    """

    parameter: ClassVar[str | None] = None
    hole_advice: ClassVar[str] = ""

    @classmethod
    def problems(cls, schedule: ExitSchedule) -> list[str]:
        """Return why ``schedule`` does not fit this placement: warm-up against the budgets.

        By default the top layer always runs, so the smallest budget is above the warm-up.
        """
        if schedule.min_exit_layer <= schedule.warmup_layers:
            return [
                f"min_exit_layer is {schedule.min_exit_layer}; allowed with placement "
                f"{schedule.placement}: above warmup_layers, {schedule.warmup_layers}"
            ]
        return []

    @classmethod
    @abstractmethod
    def layers(cls, schedule: ExitSchedule, budget: int) -> tuple[int, ...]:
        """Return the ``budget`` layers that run, lowest first."""


class Top(Placement):
    """Warm-up layers, then the top ones (SkipDecode, arXiv 2307.02628).

    {0..w-1} ∪ {L-(b-w)..L-1}. L=12, w=1: budget 6 runs 0, 7–11; budget 4 runs 0, 9–11.
    Lower-to-middle layers are bypassed.
    """

    @classmethod
    def layers(cls, schedule: ExitSchedule, budget: int) -> tuple[int, ...]:
        """Warm-up layers, then the top ones."""
        warmup = schedule.warmup_layers
        top = schedule.num_layers - (budget - warmup)
        return (*range(warmup), *range(top, schedule.num_layers))


class Bottom(Placement):
    """The lowest layers (early termination, the baseline): {0..b-1}.

    L=12: budget 6 runs 0–5, budget 4 runs 0–3; warm-up layers are among the lowest anyway.
    """

    @classmethod
    def problems(cls, schedule: ExitSchedule) -> list[str]:
        """Any budget from 1."""
        return []

    @classmethod
    def layers(cls, schedule: ExitSchedule, budget: int) -> tuple[int, ...]:
        """The lowest ``budget`` layers."""
        return tuple(range(budget))


class Unified(Placement):
    """Evenly spread layers, the first and the last among them (arXiv 2404.06954).

    The paper's, from its abstract: how many layers are skipped follows from the target speed-up
    alone, and intermediate layers are skipped in a balanced manner. Ours: the rounding, and
    warm-up layers beyond the first. With v = max(w, 1), since layer 0 always runs:

        {0..v-1} ∪ {v-1 + round_half_up(j·(L-v) / (b-v)), j = 1..b-v}

    L=12, w=1: budget 4 steps by 11/3, so 0, 3.67, 7.33, 11 and it runs 0, 4, 7, 11; budget 6 runs
    0, 2, 4, 7, 9, 11. Layer 4 is in both, but budget 5 runs 0, 3, 6, 8, 11: the sets are not
    nested, so this placement goes with the decay constant.
    """

    hole_advice = "take the decay constant, e.g. constant:max=4, or placement unified-nested"

    @classmethod
    def problems(cls, schedule: ExitSchedule) -> list[str]:
        """At least one layer above those that always run."""
        return super().problems(schedule) or _two_layers(schedule)

    @classmethod
    def layers(cls, schedule: ExitSchedule, budget: int) -> tuple[int, ...]:
        """Lowest layers, then equal steps up to the last layer."""
        lowest = max(schedule.warmup_layers, 1)
        steps = budget - lowest
        span = schedule.num_layers - lowest
        spread = (
            lowest - 1 + round_half_up(Fraction(j * span, steps)) for j in range(1, steps + 1)
        )
        return (*range(lowest), *spread)


class UnifiedNested(Placement):
    """Evenly spread layers whose smaller sets lie in the larger ones: ours, after ``unified``.

    Layers join in a fixed order, and a budget runs the first b of it: 0..max(w, 1)−1 and L−1,
    then again and again the middle layer (the lower of two) of the widest gap (the highest of
    equals). Any decay may run it.

    L=12, w=1: the order is 0 11 5 8 2 9 6 3 10 7 4 1. Budget 4 runs 0, 5, 8, 11; budget 5 adds
    layer 2, budget 6 layer 9. The gaps of budget 4 are 5, 3, 3, where unified has 4, 3, 4: the
    price of nesting.
    """

    @classmethod
    def problems(cls, schedule: ExitSchedule) -> list[str]:
        """At least one layer above those that always run."""
        return super().problems(schedule) or _two_layers(schedule)

    @classmethod
    def layers(cls, schedule: ExitSchedule, budget: int) -> tuple[int, ...]:
        """The first ``budget`` layers of the order."""
        order = _halving_order(schedule.num_layers, max(schedule.warmup_layers, 1))
        return tuple(sorted(order[:budget]))


class Hierarchical(Placement):
    """Every second layer, then every fourth, … (after Hierarchical Skip Decoding, 2403.14919).

    The paper's, from its abstract: layers are skipped in a hierarchical manner that depends on the
    length reached; from a published summary of its section on the method: with s layers skipped
    between two, the layers that run are those whose number is a multiple of s + 1. Its full text
    could not be read. Ours: s + 1 is a power of two (multiples of 3 are not among those of 2:
    holes), layers are numbered from the last one down, so that it always runs, warm-up layers run
    as well, and a budget between two levels keeps the higher layers of the level that is leaving.

        level(l) = how often 2 divides L−1−l (the last layer: above all others)
        runs the warm-up layers, then the layers of the highest level, upper ones first

    L=12, w=1: the order is 0 (warm-up), 11, 3 (every 8th), 7 (every 4th), 9, 5, 1 (every second),
    10, 8, 6, 4, 2. Budget 7 runs 0, 1, 3, 5, 7, 9, 11; budget 4 runs 0, 3, 7, 11; in between,
    budget 5 runs 0, 3, 7, 9, 11.
    """

    @classmethod
    def layers(cls, schedule: ExitSchedule, budget: int) -> tuple[int, ...]:
        """Warm-up layers, then the layers of the highest levels."""
        warmup = schedule.warmup_layers
        others = sorted(
            range(warmup, schedule.num_layers),
            key=lambda layer: (_level(schedule.num_layers - 1 - layer), layer),
            reverse=True,
        )
        return tuple(sorted((*range(warmup), *others[: budget - warmup])))


class D3(Placement):
    """Core layers at both ends run, those between them are skipped (after D3, arXiv 2503.08524).

    The paper's: head and tail layers are core and always run, the flexible ones in the middle are
    skipped, more of them with each token (``decay.D3``: ⌊L·αⁱ⌋ layers run). Its full text could
    not be read; this much is from its abstract and published summaries. Ours: the head's core is
    the warm-up, the tail's has the size ``tail``, and the skipped layers are one block centred in
    the flexible ones:

        {0..s-1} ∪ {s+L-b..L-1} with s = w + ⌊(b-w-tail) / 2⌋

    L=12, w=2, tail=3: layers 2–8 are flexible. Budget 12 runs all; 9 skips 4–6 and runs 0–3, 7–11;
    6 skips 2–7 and runs 0, 1, 8–11; 5, the least possible, runs the core 0, 1, 9–11.
    """

    parameter = "tail"

    @classmethod
    def problems(cls, schedule: ExitSchedule) -> list[str]:
        """``tail`` is 1 or more, and the core fits into the smallest budget."""
        tail, warmup = schedule.tail, schedule.warmup_layers
        if type(tail) is not int or tail < 1:
            return [f"tail is {tail!r}; placement d3 needs an integer, 1 or more, e.g. 2"]
        if schedule.min_exit_layer < warmup + tail:
            return [
                f"min_exit_layer is {schedule.min_exit_layer}; allowed with placement d3: "
                f"{warmup + tail} or more, the core of warmup_layers, {warmup}, and tail, {tail}"
            ]
        return []

    @classmethod
    def layers(cls, schedule: ExitSchedule, budget: int) -> tuple[int, ...]:
        """All but the block in the middle of the flexible layers."""
        assert schedule.tail is not None
        warmup, num_layers = schedule.warmup_layers, schedule.num_layers
        start = warmup + (budget - warmup - schedule.tail) // 2
        return (*range(start), *range(start + num_layers - budget, num_layers))


def _two_layers(schedule: ExitSchedule) -> list[str]:
    if schedule.min_exit_layer < 2:
        return [
            f"min_exit_layer is {schedule.min_exit_layer}; allowed with placement "
            f"{schedule.placement}: 2 or more, the first and the last layer always run"
        ]
    return []


@cache
def _halving_order(num_layers: int, lowest: int) -> tuple[int, ...]:
    """The order in which ``unified-nested`` takes layers; the ``lowest`` and the last come first.

    >>> _halving_order(6, 1)
    (0, 5, 2, 3, 4, 1)
    """
    order = [*range(lowest), num_layers - 1]
    while len(order) < num_layers:
        chosen = sorted(order)
        _, low, high = max((high - low, low, high) for low, high in pairwise(chosen))
        order.append((low + high) // 2)
    return tuple(order)


def _level(distance: int) -> int:
    """How often 2 divides ``distance``: 8 → 3, 6 → 1, 5 → 0; for 0 more than for any other."""
    return (distance & -distance).bit_length() - 1 if distance else 1 << 30
