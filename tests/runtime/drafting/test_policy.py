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
    """At 0.8 and 0.2 a token: 2.44 tokens for 1.4 (1.74), 3.36 for 1.8 (1.87), 4.16 for 2.4."""
    policy = policy_after(flat_costs(0.2), [(5, 4)], cycles=1000)
    gains = {k: sum(0.8**i for i in range(k + 1)) / (1 + 0.2 * k) for k in (0, 1, 2, 4, 7)}
    assert policy.choose([NEW_ROW], 1, 7) == max(gains, key=gains.__getitem__)


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
    for place in range(1200):
        if count := policy.choose([NEW_ROW], 1, 7):
            assert count == 2
            tries.append(place)
            policy.add([(2, 0)])
        policy.count_pass()
    gaps = [after - before for before, after in pairwise(tries)]
    assert tries[0] == 16
    assert gaps == [32, 64, 128, 256, 256, 256]


def test_tries_that_hold_bring_drafts_back() -> None:
    policy = policy_after(flat_costs(0.1), [(7, 0)], cycles=300)
    assert policy.choose([NEW_ROW], 1, 7) == 0
    for _ in range(6):
        for _ in range(256):
            policy.count_pass()
        assert policy.choose([NEW_ROW], 1, 7) > 0
        policy.add([(2, 2)])
    assert policy.choose([NEW_ROW], 1, 7) > 0, "without waiting for another try"


def test_costs_are_means_in_plain_passes_of_as_many_rows() -> None:
    costs = costs_of({1: 2.0, 3: 3.0}, rows=3)
    costs.add_pass(3, 3, 500.0)  # one that waited does not count
    assert costs.pass_costs(4, 3)[-1] == 1.5, "3 and 4 rows are one class"
    assert costs.pass_costs(4, 1)[-1] == 1.0
    assert costs.pass_costs(1, 3)[-1] == pytest.approx(1.08), "not measured: the prior"


def test_a_cost_that_was_not_measured_again_is_forgotten() -> None:
    costs = costs_of({1: 1.0, 3: 3.0})
    for passes, expected in ((255, 3.0), (1, 1.08)):
        for _ in range(passes):
            costs.add_pass(1, 1, 1.0)
        assert costs.pass_costs(1, 3)[-1] == pytest.approx(expected)
    for _ in range(3):
        costs.add_pass(1, 3, 1.5)
    assert costs.pass_costs(1, 3)[-1] == 1.5, "what was measured long ago does not count"


def test_an_unmeasured_pass_costs_no_more_than_a_longer_one() -> None:
    costs = costs_of({1: 1.0, 3: 1.5, 6: 1.2})
    assert costs.pass_costs(1, 8) == pytest.approx([1.0, 1.04, 1.5, 1.2, 1.2, 1.2, 1.24, 1.28])


def test_nothing_is_tried_that_could_not_gain() -> None:
    policy = policy_after(flat_costs(1.0), [(2, 0)])
    for _ in range(100):
        assert policy.choose([NEW_ROW], 1, 7) == 0, "a pass costs as much as its tokens"
        policy.count_pass()


def test_the_number_of_drafts_stays_while_it_is_nearly_the_best() -> None:
    """6 drafts gain as much as 7 at 0.8 and 4 %; engines stay bound to passes of one length."""
    costs = flat_costs(0.04)
    policy = policy_after(costs, [(5, 4)], cycles=1000)
    first = policy.choose([NEW_ROW], 1, 7)
    for _ in range(15):
        costs.add_pass(1, first + 1, 1.01 * costs.pass_costs(1, first + 1)[-1])
    assert policy.choose([NEW_ROW], 1, 7) == first
    for _ in range(15):
        costs.add_pass(1, first + 1, 1.5 * costs.pass_costs(1, first + 1)[-1])
    assert policy.choose([NEW_ROW], 1, 7) not in (0, first)


def test_an_unmeasured_pass_never_costs_more_than_its_tokens_one_by_one() -> None:
    assert PassCosts().pass_costs(256, 2) == [1.0, 2.0]


def test_plain_passes_are_measured_first_and_again_after_256() -> None:
    costs = PassCosts()
    for _ in range(2):
        for _ in range(4):
            assert costs.wants_plain(1)
            costs.add_pass(1, 1, 1.0)
        for _ in range(256):
            assert not costs.wants_plain(1)
            costs.add_pass(1, 5, 1.2)
    assert costs.wants_plain(1)
