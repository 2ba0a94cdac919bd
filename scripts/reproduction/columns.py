"""The columns of the table: ways to spend the same number of layers per token."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.schedule.notation import preset_budgets
from skipdec.runtime.schedule.text import format_schedule, parse_schedule

_LARGEST_GAP = 0.1  # maximum difference of average depth, in layers, between the columns of one row


@dataclass(frozen=True)
class Depth:
    """The depth of a row, that of skipdec's preset ``speedup``× on ``num_layers``.

    ``horizon`` is the median completion of the data, over which depths are averaged.
    """

    speedup: int
    num_layers: int
    horizon: int

    @property
    def budgets(self) -> tuple[int, int]:
        """Maximum and minimum of the preset: (8, 4) for 2× on 12 layers."""
        return preset_budgets(Fraction(self.speedup), self.num_layers)

    @property
    def average(self) -> Fraction:
        """Mean of the two: 6 for 2× on 12 layers."""
        return Fraction(sum(self.budgets), 2)

    def parse(self, text: str) -> ExitSchedule:
        """Parse ``text`` as a schedule of these layers."""
        return parse_schedule(text, num_layers=self.num_layers, horizon=self.horizon)


class Column(ABC):
    """A tuned way of skipping. ``heading`` names it in tables.

    ``times_steps`` is its training relative to the plain columns; its control has as many steps.
    """

    heading: ClassVar[str]
    times_steps: ClassVar[int] = 1

    @classmethod
    @abstractmethod
    def schedule(cls, depth: Depth) -> str | None:
        """Return the text of its schedule at ``depth``; None if none has that average depth."""

    @classmethod
    def options(cls, depth: Depth) -> Mapping[str, Any]:
        """Return fields of TuneConfig that differ from those of the plain columns."""
        return {}


class SkipDecode(Column):
    """The preset: warm-up 1, then the top layers, fewer for each token."""

    heading = "SkipDecode"

    @classmethod
    def schedule(cls, depth: Depth) -> str | None:
        """Return ``linear:max=8,min=4,warmup=1,horizon=24`` for 2× on 12 layers."""
        largest, smallest = depth.budgets
        return f"linear:max={largest},min={smallest},warmup=1,horizon={depth.horizon}"


class EarlyTermination(Column):
    """The same number of layers for each token, counted from the bottom."""

    heading = "early termination"

    @classmethod
    def schedule(cls, depth: Depth) -> str | None:
        """Return ``linear:max=8,min=4,…,placement=bottom`` for 2× on 12 layers."""
        return f"{SkipDecode.schedule(depth)},placement=bottom"


class Unified(Column):
    """The average number of layers for every token, evenly spread.

    If the average is not an integer (2.5 for 5× on 12 layers), our nested variant falls from max to
    min like SkipDecode.
    """

    heading = "unified"

    @classmethod
    def schedule(cls, depth: Depth) -> str | None:
        """Return ``constant:max=6,warmup=1,placement=unified`` for 2× on 12 layers."""
        if depth.average.denominator == 1:
            return f"constant:max={depth.average},warmup=1,placement=unified"
        return f"{SkipDecode.schedule(depth)},placement=unified-nested"


class D3(Column):
    """All layers for the first token, then ⌊L·αⁱ⌋, with a floor of the two core layers.

    α has three decimals and the mean over the horizon closest to the row's. On 12 layers and 24
    tokens 6× has none: after 12 layers for the first token, 2 for the others average 2.4.
    """

    heading = "D3"

    @classmethod
    def schedule(cls, depth: Depth) -> str | None:
        """Return ``d3:max=12,min=2,alpha=…,placement=d3,tail=1``."""

        def gap(text: str) -> float:
            average = depth.parse(text).average_budget(depth.horizon)
            return abs(average - float(depth.average))

        texts = (
            f"d3:max={depth.num_layers},min=2,alpha={thousandths / 1000},warmup=1,"
            "placement=d3,tail=1"
            for thousandths in range(1, 1000)
        )
        smallest, nearest = min((gap(text), text) for text in texts)
        return nearest if smallest <= _LARGEST_GAP else None


class Distilled(SkipDecode):
    """SkipDecode; half of the loss is the divergence from the base at full depth."""

    heading = "SkipDecode, distilled"

    @classmethod
    def options(cls, depth: Depth) -> Mapping[str, Any]:
        """Return weight 0.5, temperature 1."""
        return {"distillation": {"weight": 0.5, "temperature": 1.0}}


class Curriculum(SkipDecode):
    """SkipDecode with a depth that shrinks from full over the first half of the steps."""

    heading = "SkipDecode, curriculum"

    @classmethod
    def options(cls, depth: Depth) -> Mapping[str, Any]:
        """Return half of the steps."""
        return {"curriculum": 0.5}


class Mixture(SkipDecode):
    """SkipDecode; each step draws the row's schedule, the preset before it, or full depth."""

    heading = "SkipDecode, mixture"

    @classmethod
    def options(cls, depth: Depth) -> Mapping[str, Any]:
        """Return ``2x`` with the row's horizon for 3×; only full depth for 2×."""
        before = "full" if depth.speedup == 2 else f"{depth.speedup - 1}x"
        return {"mixture": (format_schedule(depth.parse(before)),)}


class Longer(SkipDecode):
    """SkipDecode, tuned for three times as many steps."""

    heading = "SkipDecode, 3× the steps"
    times_steps = 3


class LongerEarlyTermination(EarlyTermination):
    """Early termination, tuned for three times as many steps."""

    heading = "early termination, 3× the steps"
    times_steps = 3


COLUMNS: dict[str, type[Column]] = {
    "skipdecode": SkipDecode,
    "early-termination": EarlyTermination,
    "unified": Unified,
    "d3": D3,
    "distilled": Distilled,
    "curriculum": Curriculum,
    "mixture": Mixture,
    "longer": Longer,
    "longer-early-termination": LongerEarlyTermination,
}
TABLE_COLUMNS = ("skipdecode", "early-termination", "unified", "d3")  # the others are variants
