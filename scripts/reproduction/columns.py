"""The columns of the table: ways to spend the same number of layers per token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.schedule.presets import preset_budgets
from skipdec.runtime.schedule.text import parse_schedule

_LARGEST_GAP = 0.1  # maximum difference of average depth, in layers, between the columns of one row


@dataclass(frozen=True)
class Depth:
    """The depth of a row: that of skipdec's preset ``speedup``× on ``num_layers``.

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


def skipdecode(depth: Depth) -> str:
    """The preset, warm-up 1, then the top layers: ``linear:max=8,min=4,…`` for 2× of 12 layers."""
    largest, smallest = depth.budgets
    return f"linear:max={largest},min={smallest},warmup=1,horizon={depth.horizon}"


def early_termination(depth: Depth) -> str:
    """The same number of layers for each token, counted from the bottom."""
    return f"{skipdecode(depth)},placement=bottom"


def unified(depth: Depth) -> str:
    """The average number of layers for every token, evenly spread.

    If the average is not an integer (2.5 for 5× on 12 layers), our nested variant falls from max to
    min like SkipDecode.
    """
    if depth.average.denominator == 1:
        return f"constant:max={depth.average},warmup=1,placement=unified"
    return f"{skipdecode(depth)},placement=unified-nested"


def d3(depth: Depth) -> str | None:
    """Return all layers for the first token, then ⌊L·αⁱ⌋, with a floor of the two core layers.

    α has three decimals, chosen so that the mean over the horizon is closest to the row's. On 12
    layers and 24 tokens, 6× has none: 12 layers for the first token and 2 for the others average
    2.4.
    """

    def gap(text: str) -> float:
        average = depth.parse(text).average_budget(depth.horizon)
        return abs(average - float(depth.average))

    texts = (
        f"d3:max={depth.num_layers},min=2,alpha={thousandths / 1000},warmup=1,placement=d3,tail=1"
        for thousandths in range(1, 1000)
    )
    smallest, nearest = min((gap(text), text) for text in texts)
    return nearest if smallest <= _LARGEST_GAP else None


class Column(NamedTuple):
    """A tuned way of skipping: its heading, and the text of its schedule at a depth.

    The text is None if no schedule has that average depth.
    """

    heading: str
    schedule: Callable[[Depth], str | None]


COLUMNS = {
    "skipdecode": Column("SkipDecode", skipdecode),
    "early-termination": Column("early termination", early_termination),
    "unified": Column("unified", unified),
    "d3": Column("D3", d3),
}
