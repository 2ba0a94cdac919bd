"""Search schedules whose losses are all known."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from skipdec.calib.fitting.search import (
    ScheduleSearch,
    ScoredSchedule,
    SearchConfig,
    SearchResult,
    excess_costs,
)
from skipdec.calib.fitting.space import SearchSpace, SpaceConfig
from skipdec.engines.errors import UsageError
from skipdec.runtime.schedule import ExitSchedule

NUM_LAYERS, HORIZON = 12, 16
SPACE = SpaceConfig(
    decays=("linear", "cosine"), placements=("top", "bottom", "unified-nested"), warmups=(1, 0, 2)
)


class InventedScorer:
    """Scores with a minimum at 7 layers, not monotonically, like a model tuned to skip."""

    def __init__(self, num_examples: int = 64) -> None:
        self.num_tokens: Sequence[int] = [10] * num_examples
        self.calls: list[tuple[ExitSchedule, int, int]] = []

    def loss(self, schedule: ExitSchedule) -> float:
        depth = schedule.average_budget(HORIZON)
        return (
            1
            + 0.05 * (depth - 7) ** 2
            + 0.3 * (schedule.placement != "top")
            + 0.2 * abs(schedule.warmup_layers - 1) * (not schedule.is_full)
            + 0.01 * (schedule.decay == "cosine")
        )

    def score(self, schedule: ExitSchedule, start: int, stop: int) -> list[float]:
        self.calls.append((schedule, start, stop))
        return [10 * self.loss(schedule) + 0.1 * (index % 7) for index in range(start, stop)]


def speedup(schedule: ExitSchedule) -> float:
    return NUM_LAYERS / schedule.average_budget(HORIZON)


def search(
    scorer: InventedScorer, config: SearchConfig, space: SpaceConfig = SPACE
) -> SearchResult:
    whole = SearchSpace(space, num_layers=NUM_LAYERS, horizon=HORIZON)
    return ScheduleSearch(whole, scorer, speedup, config, lambda done, texts: None).run()


def best_loss(candidates: Sequence[ScoredSchedule], target: float) -> float:
    return min(entry.mean_loss for entry in candidates if entry.speedup >= target)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_searching_a_fifth_of_the_space_nearly_finds_the_best(seed: int) -> None:
    scorer = InventedScorer(num_examples=16)
    everything = search(scorer, SearchConfig(budget=10_000))
    assert everything.is_exhaustive
    some = search(scorer, SearchConfig(budget=everything.num_scored // 5, seed=seed))
    assert not some.is_exhaustive
    for target in (1.0, 1.5, 2.0, 3.0, 4.0):
        missed = best_loss(some.finalists, target) - best_loss(everything.finalists, target)
        assert missed <= 0.05, target


def test_neighbour_search_beats_random_points(monkeypatch: pytest.MonkeyPatch) -> None:
    def total(part: float) -> float:
        monkeypatch.setattr("skipdec.calib.fitting.search._RANDOM_PART", part)
        found = [
            search(InventedScorer(8), SearchConfig(budget=120, seed=seed)).finalists
            for seed in range(4)
        ]
        return sum(best_loss(front, target) for front in found for target in (1.2, 1.5, 2.0))

    assert total(0.25) < total(1.0)


def test_less_loss_with_fewer_layers_is_found() -> None:
    result = search(InventedScorer(), SearchConfig(budget=200))
    best = min(result.finalists, key=lambda entry: entry.mean_loss)
    assert best.schedule.average_budget(HORIZON) == pytest.approx(7, abs=0.2)
    assert (best.schedule.placement, best.schedule.warmup_layers) == ("top", 1)


def test_the_budget_holds_and_fewer_schedules_get_more_examples() -> None:
    scorer = InventedScorer(num_examples=64)
    result = search(scorer, SearchConfig(budget=200))
    assert [size for _, size in result.round_sizes] == [4, 16, 64]
    first, second, last = (count for count, _ in result.round_sizes)
    assert first == result.num_scored == len({call[0] for call in scorer.calls}) == 200
    assert second == 50
    assert 12 <= last <= second
    assert last == len(result.finalists)
    assert all(len(entry.nats) == 64 for entry in result.finalists)


def test_no_text_is_scored_twice_with_a_schedule() -> None:
    scorer = InventedScorer()
    search(scorer, SearchConfig(budget=100))
    texts = [(call[0], index) for call in scorer.calls for index in range(call[1], call[2])]
    assert len(texts) == len(set(texts))


def test_a_seed_determines_the_search() -> None:
    def order(seed: int) -> list[ExitSchedule]:
        scorer = InventedScorer(8)
        search(scorer, SearchConfig(budget=40, seed=seed))
        return [schedule for schedule, _, _ in scorer.calls]

    assert order(1) == order(1) != order(2)


def test_a_small_space_is_searched_whole() -> None:
    narrow = SpaceConfig(decays=("linear",), placements=("top",), warmups=(1,))
    result = search(InventedScorer(), SearchConfig(budget=66), narrow)
    assert (result.num_scored, result.is_exhaustive) == (66, True)
    assert not search(InventedScorer(), SearchConfig(budget=65), narrow).is_exhaustive


def test_a_single_example_is_enough() -> None:
    result = search(InventedScorer(1), SearchConfig(budget=5))
    assert result.round_sizes == ((5, 1),)


def test_impossible_settings_are_refused_together() -> None:
    with pytest.raises(UsageError, match="2 problems"):
        SearchConfig(budget=0, seed=-1)


@pytest.mark.parametrize(
    ("points", "excess"),
    [
        ([], []),
        ([(1, 5)], [0]),
        ([(1, 2), (2, 1)], [1, 0]),
        ([(2, 1), (2, 3), (2, 1)], [0, 2, 0]),
        ([(1, 1), (2, 2), (3, 2.5), (2.5, 4)], [0, 0, 0, 1.5]),
    ],
    ids=["none", "one", "beaten", "ties", "front"],
)
def test_excess_is_relative_to_the_best_schedule_at_least_as_fast(
    points: list[tuple[float, float]], excess: list[float]
) -> None:
    assert excess_costs(points) == excess
