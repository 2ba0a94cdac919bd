"""The meter finds the true ratio on a noisy machine, with an interval, and stops in time."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import pytest
from reports import as_json

from skipdec.runtime.measuring.meter import Ratio, Turns, measure

PAIR = ("own", "full")
Seconds = Callable[[int, int], dict[str, float]]  # of a turn, by its number and item


class Machine:
    """Advances a clock of its own by the time of each turn."""

    def __init__(self, seconds: Seconds) -> None:
        self.now = 0.0
        self.items: list[int] = []
        self._seconds = seconds

    def turn(self, item: int) -> dict[str, float]:
        found = self._seconds(len(self.items), item)
        self.items.append(item)
        self.now += sum(found.values())
        return found

    def measure(self, *, items: int = 1, seconds: float = 20.0) -> Turns[str]:
        return measure(self.turn, [PAIR], items=items, seconds=seconds, clock=lambda: self.now)


def noisy(seed: int) -> Seconds:
    """Return calls of 15 and 10 ms with a drift; every tenth stalls."""
    random = Random(seed)

    def seconds(number: int, item: int) -> dict[str, float]:
        drift = 1 + 0.5 * math.sin(number / 7)
        stalls = [random.expovariate(20) if random.random() < 0.1 else 0.0 for _ in range(2)]
        return {"full": 0.015 * drift + stalls[0], "own": 0.010 * drift + stalls[1]}

    return seconds


@pytest.mark.parametrize("seed", range(10))
def test_drift_and_stalls_do_not_change_the_ratio(seed: int) -> None:
    found = Machine(noisy(seed)).measure().ratio(*PAIR)
    assert found.value == pytest.approx(1.5, rel=0.02)
    assert found.low <= 1.5 <= found.high
    assert found.is_narrow


def test_a_quiet_machine_is_measured_for_two_seconds() -> None:
    machine = Machine(lambda *_: {"full": 0.02, "own": 0.01})
    assert machine.measure().ratio(*PAIR) == Ratio(2.0, 2.0, 2.0)
    assert 2 <= machine.now < 2.1


def test_lasting_noise_is_measured_until_the_limit_and_shown() -> None:
    random = Random(0)
    machine = Machine(lambda *_: {"full": 0.1 * random.lognormvariate(0, 1), "own": 0.1})
    found = machine.measure(seconds=5).ratio(*PAIR)
    assert 5 <= machine.now < 6
    assert not found.is_narrow
    assert str(found) == f"{found.value:.2f}× [{found.low:.2f}, {found.high:.2f}]"


@pytest.mark.parametrize("items", [1, 2, 7])
def test_every_item_has_a_turn_and_three_turns_are_the_least(items: int) -> None:
    machine = Machine(lambda *_: {"full": 0.02, "own": 0.01})
    machine.measure(items=items, seconds=0)
    assert machine.items == [index % items for index in range(max(3, items))]


def test_items_are_weighted_by_their_time() -> None:
    """Items of 10 and 100 ms are 1.1 and 3 times faster: 110 ms become 42."""

    def seconds(number: int, item: int) -> dict[str, float]:
        return {"full": (0.01, 0.1)[item], "own": (0.01 / 1.1, 0.1 / 3)[item]}

    found = Machine(seconds).measure(items=2)
    assert found.ratio(*PAIR).value == pytest.approx(0.11 / (0.01 / 1.1 + 0.1 / 3))
    assert found.seconds("full") == [0.01, 0.1]


def test_a_single_pass_through_many_items_has_an_interval() -> None:
    machine = Machine(lambda number, _: {"full": 0.3 + 0.001 * (number % 3), "own": 0.2})
    found = machine.measure(items=100, seconds=20).ratio(*PAIR)
    assert len(machine.items) == 100
    assert found.low < found.value < found.high


def test_the_interval_covers_the_true_median_in_95_of_100() -> None:
    random = Random(1)
    found = [Ratio.of([random.lognormvariate(0, 0.3) for _ in range(30)]) for _ in range(2000)]
    assert 0.94 < sum(one.low <= 1 <= one.high for one in found) / 2000 < 0.99


def test_the_interval_of_few_rounds_is_their_range() -> None:
    assert Ratio.of([3.0, 1.0, 2.0]) == Ratio(2.0, 1.0, 3.0)


def test_an_impossible_ratio_is_refused() -> None:
    found = Ratio(2.6, 2.4, 3.0)
    assert found.within(2.5, "layers allow") == found, "noise of 5 % is allowed"
    refused = found.within(2.0, "layers allow")
    assert str(refused) == "disturbed"
    assert as_json(refused) == {
        "value": None,
        "low": None,
        "high": None,
        "disturbed": "2.60× was measured, but layers allow at most 2.00×",
    }


def test_a_ratio_per_token_has_its_interval() -> None:
    assert Ratio(2.0, 1.0, 3.0).times(0.5) == Ratio(1.0, 0.5, 1.5)
