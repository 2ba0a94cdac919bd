"""The placement d3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ....engines.errors import shown
from ..fields import ScheduleFields
from .placement import Placement


@dataclass(frozen=True)
class D3(Placement):
    """Core layers at both ends run, those between them are skipped (after D3, arXiv 2503.08524).

    The paper's: head and tail layers are core and always run, the flexible ones in the middle are
    skipped, more of them with each token (the decay d3: ⌊L·αⁱ⌋ layers run). Its full text could
    not be read; this much is from its abstract and published summaries. Ours: the head's core is
    the warm-up, the tail's has the size ``tail``, and the skipped layers are one block centred in
    the flexible ones:

        {0..s-1} ∪ {s+L-b..L-1} with s = w + ⌊(b-w-tail) / 2⌋

    L=12, w=2, tail=3: layers 2–8 are flexible. Budget 12 runs all; 9 skips 4–6 and runs 0–3, 7–11;
    6 skips 2–7 and runs 0, 1, 8–11; 5, the least possible, runs the core 0, 1, 9–11.
    """

    searched: ClassVar[tuple[str, ...]] = ("tail=2",)

    tail: int

    def problems(self, schedule: ScheduleFields) -> list[str]:
        """``tail`` is 1 or more, and the core fits into the smallest budget."""
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

    def layers(self, schedule: ScheduleFields, budget: int) -> tuple[int, ...]:
        """All but the block in the middle of the flexible layers."""
        warmup, num_layers = schedule.warmup_layers, schedule.num_layers
        start = warmup + (budget - warmup - self.tail) // 2
        return (*range(start), *range(start + num_layers - budget, num_layers))
