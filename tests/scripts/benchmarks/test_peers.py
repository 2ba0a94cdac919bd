"""A cell is won only if the spread of starts allows it, against a peer at its best."""

from __future__ import annotations

import pytest
from benchmarks.peers.command import fastest
from benchmarks.peers.verdict import Comparison, rows

OURS = (10.0, 11.0, 12.0)


@pytest.mark.parametrize(
    ("theirs", "verdict"),
    [
        ((18.0, 19.0, 20.0), "≥ 1.5 reached"),
        ((17.9, 19.0, 20.0), "faster, ≥ 1.5 within the spread"),
        ((13.0, 14.0, 14.9), "faster, ≥ 1.5 **missed**"),
        ((11.0, 12.0, 40.0), "level, ≥ 1.5 within the spread"),
        ((8.0, 9.0, 9.9), "**slower**"),
    ],
)
def test_a_cell_is_won_only_beyond_the_spread(theirs: tuple[float, ...], verdict: str) -> None:
    assert Comparison(OURS, theirs, 1.5).verdict == verdict


def test_peers_run_in_their_fastest_way_and_the_fastest_one_is_compared() -> None:
    tried = {"OpenVINO": {"one": {"x": 1.0, "y": 3.0}, "two": {"x": 2.0, "y": 1.0}}}
    assert fastest(tried) == {"OpenVINO": {"x": "one", "y": "two"}}
    times = {"skipdec": [10.0], "llama.cpp": [30.0], "OpenVINO": [20.0]}
    ((_, _, ratio, verdict),) = rows({"x": {"goal": 1.5, "times": times}})
    assert (ratio, verdict) == ("2.00 (2.00–2.00)", "≥ 1.5 reached")
