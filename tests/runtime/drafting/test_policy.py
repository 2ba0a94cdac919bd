"""The policy drafts as many tokens as pay, by measured costs and acceptance, or none."""

from __future__ import annotations

from itertools import pairwise

import pytest

from skipdec.runtime.drafting.policy import Acceptance, DraftPolicy, PassCosts

NEW_ROW = Acceptance()


def costs_of(seconds: dict[int, float], rows: int = 1) -> PassCosts:
    """Return costs of passes over S tokens, each measured often enough."""
    costs = PassCosts()
    for tokens, one in seconds.items():
        for _ in range(15):
            costs.add_pass(rows, tokens, one)
    return costs


def flat_costs(slope: float, rows: int = 1) -> PassCosts:
    return costs_of({tokens: 1 + slope * (tokens - 1) for tokens in range(1, 9)}, rows)


def policy_after(costs: PassCosts, results: list[tuple[int, int]], cycles: int = 60) -> DraftPolicy:
    policy = DraftPolicy("own", costs)
    for _ in range(cycles):
        policy.add(results)
    return policy


@pytest.mark.parametrize(("held", "expected"), [(7, 7), (4, 2), (0, 0)])
def test_more_is_drafted_where_more_holds(held: int, expected: int) -> None:
    policy = policy_after(flat_costs(0.2), [(7, held)])
    assert policy.choose([NEW_ROW], 1, 7) == expected


def test_the_best_number_is_that_of_the_worked_example() -> None:
    """At 0.8 and 0.1 a token: 2.95 tokens for 1.3, 3.36 for 1.4 (2.40), … best is 6."""
    policy = policy_after(flat_costs(0.1), [(5, 4)], cycles=1000)
    gains = [sum(0.8**i for i in range(k + 1)) / (1 + 0.1 * k) for k in range(8)]
    assert policy.choose([NEW_ROW], 1, 7) == max(range(8), key=gains.__getitem__)


def test_a_row_whose_drafts_fail_drafts_less_than_others() -> None:
    policy = policy_after(flat_costs(0.15), [(5, 4)])
    fresh = policy.choose([Acceptance()], 1, 7)
    failing = policy.choose([Acceptance(tried=20, held=2)], 1, 7)
    assert 0 < failing < fresh


def test_rows_together_draft_fewer_where_passes_cost_more() -> None:
    policy = policy_after(flat_costs(0.5, rows=8), [(5, 4)])
    assert policy.choose([NEW_ROW] * 8, 8, 7) < policy_after(flat_costs(0.1), [(5, 4)]).choose(
        [NEW_ROW], 1, 7
    )


def test_draft_steps_that_cost_too_much_are_not_taken() -> None:
    costs = flat_costs(0.1)
    for _ in range(15):
        costs.add_draft("ends:3", 1, 0.9)
    policy = DraftPolicy("ends:3", costs)
    policy.add([(5, 3)])
    assert policy.choose([NEW_ROW], 1, 7) == 0


def test_drafts_are_tried_ever_less_often_while_nothing_holds() -> None:
    policy = policy_after(flat_costs(0.1), [(2, 0)], cycles=100)
    tries = []
    for token in range(1200):
        if count := policy.choose([NEW_ROW], 1, 7):
            assert count == 2
            tries.append(token)
            policy.add([(2, 0)])
        policy.count_tokens(1)
    gaps = [after - before for before, after in pairwise(tries)]
    assert tries[0] == 16
    assert gaps == [32, 64, 128, 256, 256, 256]


def test_tries_that_hold_bring_drafts_back() -> None:
    policy = policy_after(flat_costs(0.1), [(7, 0)], cycles=300)
    assert policy.choose([NEW_ROW], 1, 7) == 0
    for _ in range(6):
        policy.count_tokens(256)
        assert policy.choose([NEW_ROW], 1, 7) > 0
        policy.add([(2, 2)])
    assert policy.choose([NEW_ROW], 1, 7) > 0, "without waiting for another try"


def test_costs_are_quartiles_in_plain_passes_of_as_many_rows() -> None:
    costs = costs_of({1: 2.0, 3: 3.0}, rows=3)
    costs.add_pass(3, 3, 500.0)
    assert costs.pass_cost(4, 3) == 1.5, "3 and 4 rows are one class"
    assert costs.pass_cost(4, 1) == 1.0
    assert costs.pass_cost(1, 3) == pytest.approx(1.08), "not measured: the prior"


def test_a_cost_that_was_not_measured_again_is_forgotten() -> None:
    costs = costs_of({1: 1.0, 3: 3.0})
    for passes, expected in ((255, 3.0), (1, 1.08)):
        for _ in range(passes):
            costs.add_pass(1, 1, 1.0)
        assert costs.pass_cost(1, 3) == pytest.approx(expected)
    for _ in range(3):
        costs.add_pass(1, 3, 1.5)
    assert costs.pass_cost(1, 3) == 1.5, "what was measured long ago does not count"


def test_an_unmeasured_pass_never_costs_more_than_its_tokens_one_by_one() -> None:
    assert PassCosts().pass_cost(256, 2) == 2.0


def test_plain_passes_are_measured_first_and_again_after_128() -> None:
    costs = PassCosts()
    for _ in range(3):
        assert costs.wants_plain(1)
        costs.add_pass(1, 1, 1.0)
    for _ in range(128):
        assert not costs.wants_plain(1)
        costs.add_pass(1, 5, 1.2)
    assert costs.wants_plain(1)
