"""Costs of passes are recent measurements relative to passes over one token per row."""

from __future__ import annotations

import pytest
from measured_costs import costs_of

from skipdec.runtime.drafting.costs import PassCosts


def test_costs_are_relative_to_plain_passes_of_as_many_rows() -> None:
    costs = costs_of({1: 2.0, 3: 3.0}, rows=3)
    costs.add_pass(3, 3, 500.0)  # an outlier, which does not count
    assert costs.further(4, 2) == 0.5, "3 and 4 rows are one class"
    assert costs.further(4, 1) == pytest.approx(0.16), "without a measurement the prior counts"
    assert costs.further(1, 2) == pytest.approx(0.08)


def test_a_cost_is_forgotten_unless_measured_again() -> None:
    costs = costs_of({1: 1.0, 3: 3.0})
    for passes, expected in ((255, 2.0), (1, 0.08)):
        for _ in range(passes):
            costs.add_pass(1, 1, 1.0)
        assert costs.further(1, 2) == pytest.approx(expected)
    for _ in range(3):
        costs.add_pass(1, 3, 1.5)
    assert costs.further(1, 2) == 0.5, "old measurements do not count"


def test_a_pass_costs_at_most_as_much_as_its_tokens_one_by_one() -> None:
    assert PassCosts().further(256, 1) == 1.0
    assert costs_of({1: 1.0, 3: 9.0}).further(1, 2) == 2.0


def test_costs_extrapolate_measurements_and_never_fall_with_tokens() -> None:
    costs = costs_of({1: 1.0, 2: 1.4})
    assert [costs.further(1, drafts) for drafts in range(4)] == pytest.approx([0, 0.4, 0.6, 0.8])
    for _ in range(2):
        costs.add_pass(1, 5, 1.3)
    assert [costs.further(1, drafts) for drafts in (1, 3, 4)] == pytest.approx([0.3, 0.3, 0.3])
    assert costs.further(1, 6) == pytest.approx(0.38), "half of 0.3 / 4 is less than the prior"


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


def test_a_draft_step_that_binds_does_not_count() -> None:
    costs = costs_of({1: 1.0})
    for _ in range(3):
        costs.add_draft("ends:3", 1, 9.0, is_first=True)
        costs.add_draft("ends:3", 1, 0.2)
    assert costs.draft_cost("ends:3", 1, prior=0.5) == pytest.approx(0.2)
    assert costs.draft_seconds == pytest.approx(27.6)
