"""The placement hierarchical."""

from __future__ import annotations

from dataclasses import dataclass

from ..fields import ScheduleFields
from .placement import Placement


@dataclass(frozen=True)
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

    def layers(self, schedule: ScheduleFields, budget: int) -> tuple[int, ...]:
        """Warm-up layers, then the layers of the highest levels."""
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
