"""The policy picks the drafter and the number of tokens with the largest expected gain."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from measured_costs import costs_of

from skipdec.runtime.drafting.acceptance import (
    LAYER_PRIORS,
    UNKNOWN,
    Guesses,
    RowResults,
    SourceAcceptance,
    confidence_class,
)
from skipdec.runtime.drafting.costs import PassCosts
from skipdec.runtime.drafting.policy import Choice, DraftPolicy, Offer

OWN, ENDS = 0, 1
LONG = (0,) * 7


def flat_costs(slope: float, rows: int = 1) -> PassCosts:
    return costs_of({tokens: 1 + slope * (tokens - 1) for tokens in range(1, 9)}, rows)


def acceptance(source: str, shares: Sequence[float], draft_prior: float = 0.0) -> SourceAcceptance:
    """Return the acceptance of a drafter with these ``shares`` of correct guesses, by evidence."""
    return SourceAcceptance(source, shares, draft_prior)


def policy_of(costs: PassCosts, own: Sequence[float], ends: float = 0.5) -> DraftPolicy:
    """Return a policy of n-grams, and of layers whose steps cost 0.2, with credit to draft."""
    return with_credit(
        DraftPolicy([acceptance("own", own), acceptance("ends:3", [ends], 0.2)], costs)
    )


def with_credit(policy: DraftPolicy) -> DraftPolicy:
    policy._spare = 4.0
    return policy


def choose(
    policy: DraftPolicy,
    *rows: dict[int, Sequence[int]],
    results: RowResults | None = None,
    num_rows: int = 0,
) -> Choice:
    results = results or RowResults()
    offers = [{index: Offer(one, results) for index, one in row.items()} for row in rows]
    return policy.choose(offers, num_rows or len(rows))


@pytest.mark.parametrize(("share", "expected"), [(1.0, 7), (0.6, 2), (0.0, 0)])
def test_a_higher_acceptance_drafts_more_tokens(share: float, expected: int) -> None:
    assert choose(policy_of(flat_costs(0.2), [share]), {OWN: LONG}).count == expected


def test_the_best_number_is_the_worked_examples() -> None:
    """At 0.8 and 0.2 per token: 2.44 tokens for 1.4 (1.74), 3.36 for 1.8 (1.87), 4.16 for 2.4."""
    gains = {k: sum(0.8**i for i in range(k + 1)) / (1 + 0.2 * k) for k in (1, 2, 4, 7)}
    best = max(gains, key=gains.__getitem__)
    assert choose(policy_of(flat_costs(0.2), [0.8]), {OWN: LONG}).count == best


def test_drafter_and_number_are_the_policys_worked_example() -> None:
    policy = policy_of(flat_costs(0.04), [0.5, 0.95], 0.9)
    assert choose(policy, {OWN: (0, 0), ENDS: LONG}) == Choice(7, [ENDS])
    assert choose(policy, {OWN: (1,) * 7, ENDS: LONG}) == Choice(7, [OWN])


def test_of_equal_drafters_the_first_is_chosen() -> None:
    policy = with_credit(
        DraftPolicy([acceptance("own", [0.7]), acceptance("lookup", [0.7])], flat_costs(0.04))
    )
    assert choose(policy, {0: LONG, 1: LONG}).sources == [0]
    assert choose(policy, {0: (0,), 1: LONG}).sources == [1], (
        "more guesses are expected to be right"
    )


def test_each_row_has_its_best_drafter() -> None:
    costs = flat_costs(0.04, rows=2)
    for _ in range(3):
        costs.add_draft("ends:3", 2, 0.02)
    policy = policy_of(costs, [0.2, 0.97], 0.9)
    choice = choose(policy, {OWN: LONG, ENDS: LONG}, {OWN: (1,) * 7, ENDS: LONG})
    assert choice.sources == [ENDS, OWN]


def test_a_row_whose_drafts_fail_drafts_less_than_others() -> None:
    policy = policy_of(flat_costs(0.15), [0.8])
    fresh = choose(policy, {OWN: LONG}).count
    failing = choose(policy, {OWN: LONG}, results=RowResults(expected=16, held=2)).count
    assert failing < fresh


def test_a_few_wrong_guesses_in_a_row_do_not_stop_layers() -> None:
    """Layers guess about as well in all rows, so one row's misses must not end drafts."""
    source, row = acceptance("trained", LAYER_PRIORS, 0.1), RowResults()
    before = source.expected((UNKNOWN,), RowResults())
    source.add(confident(0.3).evidence, 0, row)
    assert source.expected((UNKNOWN,), row) == source.expected((UNKNOWN,), RowResults()) < before
    policy = with_credit(DraftPolicy([source], flat_costs(0.1)))
    unlucky = RowResults(expected=16, held=2)
    assert choose(policy, {0: LONG}, results=unlucky) == choose(policy, {0: LONG})


def test_several_rows_draft_fewer_where_passes_cost_more() -> None:
    together = policy_of(flat_costs(0.5, rows=8), [0.8])
    alone = policy_of(flat_costs(0.1), [0.8])
    assert choose(together, *[{OWN: LONG}] * 8).count < choose(alone, {OWN: LONG}).count


def test_rows_without_drafts_lower_the_gain() -> None:
    policy = policy_of(flat_costs(0.1, rows=8), [0.3])
    assert choose(policy, {OWN: LONG}, num_rows=8).count == 0


def test_draft_steps_that_cost_too_much_are_not_run() -> None:
    costs = flat_costs(0.1)
    for _ in range(15):
        costs.add_draft("ends:3", 1, 0.9)
    assert choose(policy_of(costs, [0.5], 0.6), {ENDS: LONG}).count == 0


def drafting_layers(slope: float, step: float, rows: int = 1) -> DraftPolicy:
    """Return a policy of layers that guess right half the time, after a choice that gains."""
    layers = acceptance("trained", LAYER_PRIORS, step)
    policy = with_credit(DraftPolicy([layers], flat_costs(slope, rows)))
    assert choose(policy, *[{0: (UNKNOWN,) * 7}] * rows).count > 0
    return policy


def confident(*probabilities: float) -> Guesses:
    return Guesses((5,) * len(probabilities), [confidence_class(one) for one in probabilities])


def test_layers_continue_while_confident() -> None:
    """A further token costs 0.1 of a gain of 1.4; half of all guesses are right."""
    policy = drafting_layers(0.05, 0.05)
    assert policy.goes_on(0, [confident(0.9)], 1)
    assert policy.goes_on(0, [confident(0.9, 0.9, 0.9)], 1)
    assert not policy.goes_on(0, [confident(0.9, 0.2)], 1)
    assert not policy.goes_on(0, [confident(0.1)], 1)


def test_a_pass_checks_only_guesses_likely_enough() -> None:
    policy = drafting_layers(0.2, 0.02)
    assert policy.worth_checking(0, [confident(0.9, 0.9)], 1) == 2
    assert policy.worth_checking(0, [confident(0.9, 0.1)], 1) == 1
    assert policy.worth_checking(0, [confident(0.1, 0.9)], 1) == 0


def test_rows_share_the_cost_of_a_draft_step() -> None:
    """A step pays for two rows, but not for one."""
    policy = drafting_layers(0.15, 0.15, rows=2)
    assert policy.goes_on(0, [confident(0.99), confident(0.99)], 2)
    assert not policy.goes_on(0, [confident(0.99), confident(0.01)], 2)
    assert policy.worth_checking(0, [confident(0.99), confident()], 2) == 1


def test_layers_stop_when_credit_runs_out() -> None:
    policy = drafting_layers(0.05, 0.05)
    policy._spare = 0.15
    assert not policy.goes_on(0, [confident(0.9)], 1)


def test_an_unpromising_confidence_class_is_retried() -> None:
    source = acceptance("trained", LAYER_PRIORS, 0.1)
    sure, unsure = confident(0.95).evidence, confident(0.55).evidence
    for _ in range(100):
        source.add(unsure, 0, RowResults())
    for _ in range(128):
        assert source.share(unsure[0]) < 0.1
        source.add(sure, 1, RowResults())
        source.count_pass()
    assert source.share(unsure[0]) == LAYER_PRIORS[unsure[0]]


def test_a_long_draft_can_pay_where_its_first_token_does_not() -> None:
    """The first token makes a pass 0.6 longer, each further one 0.02."""
    costs = costs_of({1: 1.0} | {tokens: 1.56 + 0.02 * tokens for tokens in range(2, 9)})
    policy = with_credit(DraftPolicy([acceptance("trained", LAYER_PRIORS, 0.02)], costs))
    choose(policy, {0: (UNKNOWN,) * 7})
    assert policy.worth_checking(0, [confident(0.9)], 1) <= 1
    assert policy.worth_checking(0, [confident(*[0.95] * 5)], 1) == 5
    assert policy.worth_checking(0, [confident(*[0.3] * 5)], 1) == 0


def test_acceptance_is_learned_per_confidence_and_overall() -> None:
    source = acceptance("trained", LAYER_PRIORS, 0.1)
    for _ in range(200):
        source.add(confident(0.9, 0.3).evidence, 1, RowResults())  # the second is wrong
    assert source.share(confidence_class(0.9)) > 0.95
    assert source.share(confidence_class(0.3)) < 0.05
    assert source.share(UNKNOWN) == pytest.approx(0.5, abs=0.05)
    assert source.chance(confident(0.9, 0.3).evidence) < 0.05


@pytest.mark.parametrize(
    ("probability", "expected"), [(float("nan"), 1), (0.0, 1), (0.3, 3), (0.99, 8), (1.0, 8)]
)
def test_confidence_classes_are_eighths(probability: float, expected: int) -> None:
    assert confidence_class(probability) == expected


def test_acceptance_is_learned_per_evidence() -> None:
    source = acceptance("own", [0.5, 0.5])
    for _ in range(200):
        source.add((0, 1), 1, RowResults())  # the second is wrong
    assert source.share(0) > 0.95
    assert source.share(1) < 0.05
    assert source.expected((0, 1), RowResults()) == pytest.approx([0, 0.98, 0.98], abs=0.05)


def test_a_drafter_that_is_always_wrong_retries_after_128_passes() -> None:
    policy, drafts = policy_of(flat_costs(0.1), [0.0]), []
    for index in range(400):
        if choose(policy, {OWN: LONG}).count:
            drafts.append(index)
            policy.sources[OWN].add((0,), 0, RowResults())
        policy.count_pass(1, 1, 1.0)  # without the cost of drafts, which would start a pause
    assert (drafts[0], len(drafts)) == (128, 15), "a few passes after each wait"


def test_right_guesses_resume_drafting() -> None:
    policy = policy_of(flat_costs(0.1), [0.0])
    for _ in range(128):
        assert choose(policy, {OWN: LONG}).count == 0
        policy.count_pass(1, 1, 1.0)
    for _ in range(200):
        assert choose(policy, {OWN: LONG}).count > 0
        policy.sources[OWN].add((0, 0), 2, RowResults())
        policy.count_pass(1, 3, 1.2)


def test_drafts_that_cannot_gain_are_never_tried() -> None:
    policy = policy_of(flat_costs(1.0), [0.0])
    for _ in range(300):
        assert choose(policy, {OWN: LONG}).count == 0, "a pass costs as much as its tokens"
        policy.count_pass(1, 1, 1.0)


STEEP = (1.0, 1.4, 1.6, 1.75, 1.9, 2.1, 2.3, 2.5)


@pytest.mark.parametrize("num_passes", [400, 1000, 5000])
@pytest.mark.parametrize("searching", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("longer", [STEEP, range(1, 9)], ids=["steep", "as many steps"])
def test_drafts_that_are_always_wrong_cost_at_most_3_percent(
    longer: Sequence[float], searching: float, num_passes: int
) -> None:
    """Costs are unknown at first, and the search for guesses takes time, too."""
    costs, total = PassCosts(), 0.0
    policy = DraftPolicy([acceptance("own", [0.6]), acceptance("ends:3", LAYER_PRIORS, 0.2)], costs)
    for _ in range(num_passes):
        if policy.pauses():
            total += 1
            continue
        if costs.wants_plain(1):
            costs.add_pass(1, 1, 1.0)
            total += 1
            continue
        choice, steps = choose(policy, {OWN: LONG, ENDS: LONG}), 0.0
        fed = LONG[: choice.count]
        if choice.count and choice.sources == [ENDS]:
            drafted = confident(0.9)
            while len(drafted.tokens) < 7 and policy.goes_on(ENDS, [drafted], 1):
                drafted = confident(*[0.9] * (len(drafted.tokens) + 1))
            steps = 0.2 * len(drafted.tokens)
            fed = drafted.evidence[: policy.worth_checking(ENDS, [drafted], 1)]
        if fed:
            policy.sources[choice.sources[0] or 0].add(fed[:1], 0, RowResults())
            costs.add_pass(1, len(fed) + 1, longer[len(fed)] + searching)
        seconds = longer[len(fed)] + searching + steps
        policy.count_pass(1, 1, seconds)
        total += seconds
    assert total <= 1.03 * num_passes


def test_drafts_lose_only_part_of_their_past_gain() -> None:
    """A hundred passes that gained two tokens each leave a credit of 16."""
    policy, lost = policy_of(flat_costs(0.1), [0.5]), 0
    for _ in range(100):
        policy.count_pass(1, 3, 1.0)
    while not policy.pauses():
        policy.count_pass(1, 1, 1.5)
        lost += 1
    assert lost == 34, "each loses 0.5 of a credit of 16 and adds 2 %"


def test_a_pause_lasts_until_there_is_credit_again() -> None:
    costs = flat_costs(0.1)
    policy = DraftPolicy([acceptance("own", [0.5])], costs)
    policy.count_pass(1, 1, 3.5)
    assert sum(policy.pauses() for _ in range(300)) == 124, "from −0.48 to 2 at 2 % per pass"
    assert costs.wants_plain(1)


def test_after_a_pause_drafts_are_tried_even_if_a_pass_over_two_tokens_costs_much() -> None:
    policy = DraftPolicy([acceptance("own", [0.95])], flat_costs(0.6))
    policy.count_pass(1, 1, 4.0)
    while policy.pauses():
        pass
    for _ in range(4):
        policy.count_pass(1, 0, 0.1)  # passes that are measured without drafts
    assert choose(policy, {OWN: LONG}).count > 0


def test_one_very_long_pass_ends_drafts_no_longer_than_it_owes_two_passes() -> None:
    """A garbage collection may take dozens of a small model's passes."""
    policy = DraftPolicy([acceptance("own", [0.5])], flat_costs(0.1))
    policy.count_pass(1, 0, 60.0)
    assert sum(policy.pauses() for _ in range(3000)) == 200, "from −2 to 2 at 2 % per pass"


def test_a_draft_may_not_cost_more_than_the_credit() -> None:
    policy = DraftPolicy([acceptance("own", [0.95])], flat_costs(0.2))
    policy.count_pass(1, 1, 2.5)
    assert choose(policy, {OWN: LONG}).count == 2, "two of seven: the credit is half a pass"
    assert choose(with_credit(policy), {OWN: LONG}).count == 7


def test_no_search_starts_without_credit_for_a_draft() -> None:
    """Else searches would use up the credit of every pass, and drafts would never resume."""
    policy = policy_of(flat_costs(0.2), [0.95])
    policy._spare = 0.15
    assert choose(policy, {OWN: LONG}).count == 0
    policy.count_pass(1, 0, 0.02)
    assert sum(policy.pauses() for _ in range(300)) == 93, "from 0.15 to 2 at 2 % per pass"
    assert choose(policy, {OWN: LONG}).count > 0


def test_a_pass_without_guesses_costs_only_its_search() -> None:
    policy = DraftPolicy([acceptance("own", [0.5])], flat_costs(0.1))
    policy.count_pass(1, 0, 1.5)
    assert not policy.pauses()
    policy.count_pass(1, 1, 1.5)
    assert not policy.pauses(), "a guess was right"
    policy.count_pass(1, 0, 0.2)
    assert policy.pauses()


def test_the_number_of_drafts_stays_while_nearly_optimal() -> None:
    """At 0.8 and 4 %, 6 drafts gain as much as 7; engines stay bound to one length."""
    costs = flat_costs(0.04)
    policy = policy_of(costs, [0.8])
    first = choose(policy, {OWN: LONG}).count
    for _ in range(15):
        costs.add_pass(1, first + 1, 1.01 * (1 + costs.further(1, first)))
    assert choose(policy, {OWN: LONG}).count == first
    for _ in range(15):
        costs.add_pass(1, first + 1, 1.5 * (1 + costs.further(1, first)))
    assert choose(policy, {OWN: LONG}).count not in (0, first)
