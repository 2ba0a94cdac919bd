"""The policy drafts what is expected to gain most, as many tokens as pay, or nothing."""

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


def holding(source: str, shares: Sequence[float], draft_prior: float = 0.0) -> SourceAcceptance:
    """Return the acceptance of a drafter whose guesses hold with ``shares``, by evidence."""
    return SourceAcceptance(source, shares, draft_prior)


def policy_of(costs: PassCosts, own: Sequence[float], ends: float = 0.5) -> DraftPolicy:
    """Return a policy of n-grams, and of layers whose steps cost 0.2, that has gained enough."""
    return earned(DraftPolicy([holding("own", own), holding("ends:3", [ends], 0.2)], costs))


def earned(policy: DraftPolicy) -> DraftPolicy:
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
def test_more_is_drafted_where_more_holds(share: float, expected: int) -> None:
    assert choose(policy_of(flat_costs(0.2), [share]), {OWN: LONG}).count == expected


def test_the_best_number_is_that_of_the_worked_example() -> None:
    """At 0.8 and 0.2 a token: 2.44 tokens for 1.4 (1.74), 3.36 for 1.8 (1.87), 4.16 for 2.4."""
    gains = {k: sum(0.8**i for i in range(k + 1)) / (1 + 0.2 * k) for k in (1, 2, 4, 7)}
    best = max(gains, key=gains.__getitem__)
    assert choose(policy_of(flat_costs(0.2), [0.8]), {OWN: LONG}).count == best


def test_drafter_and_number_are_those_of_the_policys_example() -> None:
    policy = policy_of(flat_costs(0.04), [0.5, 0.95], 0.9)
    assert choose(policy, {OWN: (0, 0), ENDS: LONG}) == Choice(7, [ENDS])
    assert choose(policy, {OWN: (1,) * 7, ENDS: LONG}) == Choice(7, [OWN])


def test_of_equal_drafters_the_first_is_asked() -> None:
    policy = earned(
        DraftPolicy([holding("own", [0.7]), holding("lookup", [0.7])], flat_costs(0.04))
    )
    assert choose(policy, {0: LONG, 1: LONG}).sources == [0]
    assert choose(policy, {0: (0,), 1: LONG}).sources == [1], "more guesses are expected to hold"


def test_each_row_has_the_drafter_that_is_best_for_it() -> None:
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


def test_layers_draft_on_in_a_row_where_a_few_guesses_were_wrong() -> None:
    """They hold about as often in all rows: this one would have ended drafts that pay."""
    source, row = holding("trained", LAYER_PRIORS, 0.1), RowResults()
    before = source.expected((UNKNOWN,), RowResults())
    source.add(confident(0.3).evidence, 0, row)
    assert source.expected((UNKNOWN,), row) == source.expected((UNKNOWN,), RowResults()) < before
    policy = earned(DraftPolicy([source], flat_costs(0.1)))
    unlucky = RowResults(expected=16, held=2)
    assert choose(policy, {0: LONG}, results=unlucky) == choose(policy, {0: LONG})


def test_rows_together_draft_fewer_where_passes_cost_more() -> None:
    together = policy_of(flat_costs(0.5, rows=8), [0.8])
    alone = policy_of(flat_costs(0.1), [0.8])
    assert choose(together, *[{OWN: LONG}] * 8).count < choose(alone, {OWN: LONG}).count


def test_rows_that_do_not_draft_lower_the_gain() -> None:
    policy = policy_of(flat_costs(0.1, rows=8), [0.3])
    assert choose(policy, {OWN: LONG}, num_rows=8).count == 0


def test_draft_steps_that_cost_too_much_are_not_taken() -> None:
    costs = flat_costs(0.1)
    for _ in range(15):
        costs.add_draft("ends:3", 1, 0.9)
    assert choose(policy_of(costs, [0.5], 0.6), {ENDS: LONG}).count == 0


def drafting_layers(slope: float, step: float, rows: int = 1) -> DraftPolicy:
    """Return a policy of layers whose guesses hold half the time, behind a choice that gains."""
    layers = holding("trained", LAYER_PRIORS, step)
    policy = earned(DraftPolicy([layers], flat_costs(slope, rows)))
    assert choose(policy, *[{0: (UNKNOWN,) * 7}] * rows).count > 0
    return policy


def confident(*probabilities: float) -> Guesses:
    return Guesses((5,) * len(probabilities), [confidence_class(one) for one in probabilities])


def test_layers_draft_on_while_they_are_sure_of_their_guesses() -> None:
    """A token more costs 0.1, of a gain of 1.4; half of all guesses hold."""
    policy = drafting_layers(0.05, 0.05)
    assert policy.goes_on(0, [confident(0.9)], 1)
    assert policy.goes_on(0, [confident(0.9, 0.9, 0.9)], 1)
    assert not policy.goes_on(0, [confident(0.9, 0.2)], 1)
    assert not policy.goes_on(0, [confident(0.1)], 1)


def test_a_pass_checks_only_guesses_whose_chance_is_worth_it() -> None:
    policy = drafting_layers(0.2, 0.02)
    assert policy.worth_checking(0, [confident(0.9, 0.9)], 1) == 2
    assert policy.worth_checking(0, [confident(0.9, 0.1)], 1) == 1
    assert policy.worth_checking(0, [confident(0.1, 0.9)], 1) == 0


def test_rows_draft_on_together() -> None:
    """A step serves both, and one of them alone is not worth it."""
    policy = drafting_layers(0.15, 0.15, rows=2)
    assert policy.goes_on(0, [confident(0.99), confident(0.99)], 2)
    assert not policy.goes_on(0, [confident(0.99), confident(0.01)], 2)
    assert policy.worth_checking(0, [confident(0.99), confident()], 2) == 1


def test_layers_draft_no_more_than_may_be_lost() -> None:
    policy = drafting_layers(0.05, 0.05)
    policy._spare = 0.15
    assert not policy.goes_on(0, [confident(0.9)], 1)


def test_a_class_that_was_not_worth_checking_is_tried_again() -> None:
    source = holding("trained", LAYER_PRIORS, 0.1)
    sure, unsure = confident(0.95).evidence, confident(0.55).evidence
    for _ in range(100):
        source.add(unsure, 0, RowResults())
    for _ in range(128):
        assert source.share(unsure[0]) < 0.1
        source.add(sure, 1, RowResults())
        source.count_pass()
    assert source.share(unsure[0]) == LAYER_PRIORS[unsure[0]]


def test_a_long_draft_is_checked_where_its_first_token_alone_is_not_worth_it() -> None:
    """The first token makes a pass 0.6 longer, each further one 0.02."""
    costs = costs_of({1: 1.0} | {tokens: 1.56 + 0.02 * tokens for tokens in range(2, 9)})
    policy = earned(DraftPolicy([holding("trained", LAYER_PRIORS, 0.02)], costs))
    choose(policy, {0: (UNKNOWN,) * 7})
    assert policy.worth_checking(0, [confident(0.9)], 1) <= 1
    assert policy.worth_checking(0, [confident(*[0.95] * 5)], 1) == 5
    assert policy.worth_checking(0, [confident(*[0.3] * 5)], 1) == 0


def test_what_held_is_learned_by_confidence_and_for_all() -> None:
    source = holding("trained", LAYER_PRIORS, 0.1)
    for _ in range(200):
        source.add(confident(0.9, 0.3).evidence, 1, RowResults())  # the second is wrong
    assert source.share(confidence_class(0.9)) > 0.95
    assert source.share(confidence_class(0.3)) < 0.05
    assert source.share(UNKNOWN) == pytest.approx(0.5, abs=0.05)
    assert source.chance(confident(0.9, 0.3).evidence) < 0.05


@pytest.mark.parametrize(
    ("probability", "expected"), [(float("nan"), 1), (0.0, 1), (0.3, 3), (0.99, 8), (1.0, 8)]
)
def test_classes_of_confidence_are_eighths(probability: float, expected: int) -> None:
    assert confidence_class(probability) == expected


def test_shares_follow_what_held_with_this_evidence() -> None:
    source = holding("own", [0.5, 0.5])
    for _ in range(200):
        source.add((0, 1), 1, RowResults())  # the second is wrong
    assert source.share(0) > 0.95
    assert source.share(1) < 0.05
    assert source.expected((0, 1), RowResults()) == pytest.approx([0, 0.98, 0.98], abs=0.05)


def test_a_drafter_whose_guesses_never_hold_drafts_again_behind_128_passes() -> None:
    policy, drafts = policy_of(flat_costs(0.1), [0.0]), []
    for index in range(400):
        if choose(policy, {OWN: LONG}).count:
            drafts.append(index)
            policy.sources[OWN].add((0,), 0, RowResults())
        policy.count_pass(1, 1, 1.0)  # what drafts cost is left out, else there would be a pause
    assert (drafts[0], len(drafts)) == (128, 15), "few passes, then a wait"


def test_guesses_that_hold_again_bring_drafts_back() -> None:
    policy = policy_of(flat_costs(0.1), [0.0])
    for _ in range(128):
        assert choose(policy, {OWN: LONG}).count == 0
        policy.count_pass(1, 1, 1.0)
    for _ in range(200):
        assert choose(policy, {OWN: LONG}).count > 0
        policy.sources[OWN].add((0, 0), 2, RowResults())
        policy.count_pass(1, 3, 1.2)


def test_nothing_is_tried_that_could_not_gain() -> None:
    policy = policy_of(flat_costs(1.0), [0.0])
    for _ in range(300):
        assert choose(policy, {OWN: LONG}).count == 0, "a pass costs as much as its tokens"
        policy.count_pass(1, 1, 1.0)


STEEP = (1.0, 1.4, 1.6, 1.75, 1.9, 2.1, 2.3, 2.5)


@pytest.mark.parametrize("num_passes", [400, 1000, 5000])
@pytest.mark.parametrize("searching", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("longer", [STEEP, range(1, 9)], ids=["steep", "as many steps"])
def test_drafts_that_never_hold_cost_at_most_3_percent(
    longer: Sequence[float], searching: float, num_passes: int
) -> None:
    """Costs are not known before, and searching for guesses costs something, too."""
    costs, total = PassCosts(), 0.0
    policy = DraftPolicy([holding("own", [0.6]), holding("ends:3", LAYER_PRIORS, 0.2)], costs)
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


def test_what_drafts_gained_is_lost_only_in_part() -> None:
    """A hundred passes that gained two tokens each leave four to be lost."""
    policy, lost = policy_of(flat_costs(0.1), [0.5]), 0
    for _ in range(100):
        policy.count_pass(1, 3, 1.0)
    while not policy.pauses():
        policy.count_pass(1, 1, 1.5)
        lost += 1
    assert lost == 9, "0.5 each, of 4 and 2 % of each"


def test_a_pause_lasts_until_there_is_something_to_lose_again() -> None:
    costs = flat_costs(0.1)
    policy = DraftPolicy([holding("own", [0.5])], costs)
    policy.count_pass(1, 1, 3.5)
    assert sum(policy.pauses() for _ in range(300)) == 49, "of −0.48 and 0.5, 2 % each"
    assert costs.wants_plain(1)


def test_nothing_is_drafted_that_may_cost_more_than_is_left() -> None:
    policy = DraftPolicy([holding("own", [0.95])], flat_costs(0.2))
    policy.count_pass(1, 1, 2.5)
    assert choose(policy, {OWN: LONG}).count == 2, "two of seven: half a pass may be lost"
    assert choose(earned(policy), {OWN: LONG}).count == 7


def test_nothing_is_looked_for_that_could_not_be_afforded() -> None:
    """The search would use up what every pass adds, and nothing would ever be drafted again."""
    policy = policy_of(flat_costs(0.2), [0.95])
    policy._spare = 0.15
    assert choose(policy, {OWN: LONG}).count == 0
    policy.count_pass(1, 0, 0.02)
    assert sum(policy.pauses() for _ in range(300)) == 18, "of 0.15 and 0.5, 2 % each"
    assert choose(policy, {OWN: LONG}).count > 0


def test_a_search_is_counted_where_a_pass_took_long_for_other_reasons() -> None:
    policy = DraftPolicy([holding("own", [0.5])], flat_costs(0.1))
    policy.count_pass(1, 0, 1.5)
    assert not policy.pauses()
    policy.count_pass(1, 1, 1.5)
    assert not policy.pauses(), "a guess held"
    policy.count_pass(1, 0, 0.2)
    assert policy.pauses()


def test_the_number_of_drafts_stays_while_it_is_nearly_the_best() -> None:
    """6 drafts gain as much as 7 at 0.8 and 4 %; engines stay bound to passes of one length."""
    costs = flat_costs(0.04)
    policy = policy_of(costs, [0.8])
    first = choose(policy, {OWN: LONG}).count
    for _ in range(15):
        costs.add_pass(1, first + 1, 1.01 * (1 + costs.further(1, first)))
    assert choose(policy, {OWN: LONG}).count == first
    for _ in range(15):
        costs.add_pass(1, first + 1, 1.5 * (1 + costs.further(1, first)))
    assert choose(policy, {OWN: LONG}).count not in (0, first)
