"""Placements: which layers a budget runs.

A rule's docstring says what is from a paper and what is ours. L is the number of layers, w the
warm-up, b the budget; layers are 0 … L−1. With any rule, b = L runs every layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any

from ...engines.errors import shown
from .fields import ScheduleFields
from .rounding import round_half_up


def _without_top(schedule: ScheduleFields, _: None) -> list[str]:
    """Refuse a smallest budget that leaves nothing above the warm-up: the top layer always runs."""
    smallest, warmup = schedule.min_exit_layer, schedule.warmup_layers
    if smallest > warmup:
        return []
    return [
        f"min_exit_layer is {smallest}; allowed with placement {schedule.placement}: above "
        f"warmup_layers, {warmup}"
    ]


@dataclass(frozen=True)
class Placement:
    """A rule for the layers of a budget.

    ``layers`` maps a schedule, a budget and the parameter's value to the layers that run, lowest
    first. ``parameter`` and ``problems`` are as in `Decay`. ``hole_advice`` says what to do about
    sets of layers that are not nested.
    """

    layers: Callable[[ScheduleFields, int, Any], tuple[int, ...]]
    parameter: str | None = None
    problems: Callable[[ScheduleFields, Any], list[str]] = _without_top
    hole_advice: str = ""


def layers_of(schedule: ScheduleFields, budget: int) -> tuple[int, ...]:
    """Return the ``budget`` layers that run, lowest first."""
    placement = PLACEMENTS[schedule.placement]
    return placement.layers(schedule, budget, schedule.value_of(placement.parameter))


def _top(schedule: ScheduleFields, budget: int, _: None) -> tuple[int, ...]:
    """Run the warm-up layers, then the top ones (SkipDecode, arXiv 2307.02628).

    {0..w-1} ∪ {L-(b-w)..L-1}. L=12, w=1: budget 6 runs 0, 7–11; budget 4 runs 0, 9–11.
    Lower-to-middle layers are bypassed.
    """
    top = schedule.num_layers - (budget - schedule.warmup_layers)
    return (*range(schedule.warmup_layers), *range(top, schedule.num_layers))


def _bottom(schedule: ScheduleFields, budget: int, _: None) -> tuple[int, ...]:
    """Run the lowest layers (early termination, the baseline): {0..b-1}.

    L=12: budget 6 runs 0–5, budget 4 runs 0–3; warm-up layers are among the lowest anyway.
    """
    return tuple(range(budget))


def _unified(schedule: ScheduleFields, budget: int, _: None) -> tuple[int, ...]:
    """Spread layers evenly, the first and the last among them (arXiv 2404.06954).

    The paper's, from its abstract: the number of skipped layers follows from the target speed-up
    alone, and intermediate layers are skipped in a balanced manner. Ours: the rounding, and
    warm-up layers beyond the first. With v = max(w, 1), since layer 0 always runs:

        {0..v-1} ∪ {v-1 + round_half_up(j·(L-v) / (b-v)), j = 1..b-v}

    L=12, w=1: budget 4 steps by 11/3, so 0, 3.67, 7.33, 11 and it runs 0, 4, 7, 11; budget 6 runs
    0, 2, 4, 7, 9, 11. Layer 4 is in both, but budget 5 runs 0, 3, 6, 8, 11: the sets are not
    nested, so this placement goes with the decay constant.
    """
    lowest = max(schedule.warmup_layers, 1)
    steps = budget - lowest
    span = schedule.num_layers - lowest
    spread = (lowest - 1 + round_half_up(Fraction(j * span, steps)) for j in range(1, steps + 1))
    return (*range(lowest), *spread)


def _unified_nested(schedule: ScheduleFields, budget: int, _: None) -> tuple[int, ...]:
    """Spread layers so that smaller sets lie in the larger ones: ours, after ``unified``.

    Layers join in a fixed order, and a budget runs the first b of it: 0..max(w, 1)−1 and L−1,
    then repeatedly the middle layer (the lower of two) of the widest gap (the highest of equals).
    Any decay may run it.

    L=12, w=1: the order is 0 11 5 8 2 9 6 3 10 7 4 1. Budget 4 runs 0, 5, 8, 11; budget 5 adds
    layer 2, budget 6 layer 9. The gaps of budget 4 are 5, 3, 3, where unified has 4, 3, 4: the
    price of nesting.
    """
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


def _hierarchical(schedule: ScheduleFields, budget: int, _: None) -> tuple[int, ...]:
    """Run every second layer, then every fourth, … (Hierarchical Skip Decoding, 2403.14919).

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

    def rank(layer: int) -> tuple[float, int]:
        distance = schedule.num_layers - 1 - layer
        return (distance & -distance or float("inf"), layer)  # the power of 2 in the distance

    warmup = schedule.warmup_layers
    others = sorted(range(warmup, schedule.num_layers), key=rank, reverse=True)
    return tuple(sorted((*range(warmup), *others[: budget - warmup])))


def _d3(schedule: ScheduleFields, budget: int, tail: int) -> tuple[int, ...]:
    """Run core layers at both ends, skip those between them (after D3, arXiv 2503.08524).

    The paper's: head and tail layers are core and always run, the flexible ones in the middle are
    skipped, more of them with each token (the decay d3: ⌊L·αⁱ⌋ layers run). Its full text was
    unavailable; this is from its abstract and published summaries. Ours: the head's core is the
    warm-up, the tail's has the size ``tail``, and the skipped layers are one block centred in the
    flexible ones:

        {0..s-1} ∪ {s+L-b..L-1} with s = w + ⌊(b-w-tail) / 2⌋

    L=12, w=2, tail=3: layers 2–8 are flexible. Budget 12 runs all; 9 skips 4–6 and runs 0–3, 7–11;
    6 skips 2–7 and runs 0, 1, 8–11; 5, the minimum, runs the core 0, 1, 9–11.
    """
    warmup, num_layers = schedule.warmup_layers, schedule.num_layers
    start = warmup + (budget - warmup - tail) // 2
    return (*range(start), *range(start + num_layers - budget, num_layers))


def _without_ends(schedule: ScheduleFields, _: None) -> list[str]:
    if (problems := _without_top(schedule, None)) or schedule.min_exit_layer >= 2:
        return problems
    return [
        f"min_exit_layer is {schedule.min_exit_layer}; allowed with placement "
        f"{schedule.placement}: 2 or more, the first and the last layer always run"
    ]


def _without_core(schedule: ScheduleFields, tail: object) -> list[str]:
    if type(tail) is not int or tail < 1:
        return [f"tail is {shown(tail)}; placement d3 needs an integer, 1 or more, e.g. 2"]
    warmup = schedule.warmup_layers
    if schedule.min_exit_layer >= warmup + tail:
        return []
    return [
        f"min_exit_layer is {schedule.min_exit_layer}; allowed with placement d3: "
        f"{shown(warmup + tail)} or more, the core of warmup_layers, {warmup}, and tail, "
        f"{shown(tail)}"
    ]


PLACEMENTS: Mapping[str, Placement] = {
    "top": Placement(_top),
    "bottom": Placement(_bottom, problems=lambda schedule, value: []),
    "unified": Placement(
        _unified,
        problems=_without_ends,
        hole_advice="take the decay constant, e.g. constant:max=4, or placement unified-nested",
    ),
    "unified-nested": Placement(_unified_nested, problems=_without_ends),
    "hierarchical": Placement(_hierarchical),
    "d3": Placement(_d3, "tail", _without_core),
}
