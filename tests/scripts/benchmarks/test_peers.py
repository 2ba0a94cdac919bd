"""A cell is won only if the spread of starts allows it, against a peer at its best."""

from __future__ import annotations

import pytest
from benchmarks.peers.command import fastest
from benchmarks.peers.verdict import Comparison
from pages.peers import peers_page

OURS = (10.0, 11.0, 12.0)


@pytest.mark.parametrize(
    ("theirs", "verdict"),
    [
        ((18.0, 19.0, 20.0), "≥ 1.5 reached"),
        ((17.9, 19.0, 20.0), "faster, ≥ 1.5 within the spread"),
        ((13.0, 14.0, 14.9), "faster, ≥ 1.5 **missed**"),
        ((11.0, 12.0, 13.0), "level, ≥ 1.5 **missed**"),
        ((11.0, 12.0, 40.0), "level, ≥ 1.5 within the spread"),
        ((8.0, 9.0, 9.9), "**slower**"),
    ],
)
def test_a_cell_is_won_only_beyond_the_spread(theirs: tuple[float, ...], verdict: str) -> None:
    assert Comparison(OURS, theirs, 1.5).verdict == verdict


def test_a_peer_is_run_in_the_fastest_way_of_each_cell() -> None:
    tried = {"OpenVINO": {"one": {"x": 1.0, "y": 3.0}, "two": {"x": 2.0, "y": 1.0}}}
    assert fastest(tried) == {"OpenVINO": {"x": "one", "y": "two"}}


@pytest.mark.parametrize("others", [("CTranslate2", "OpenVINO"), ("llama.cpp", "OpenVINO")])
def test_the_page_compares_with_the_fastest_peer(others: tuple[str, str]) -> None:
    times = {"skipdec": [10.0], others[0]: [30.0], others[1]: [20.0]}
    part = {
        "date": "",
        "commit": "",
        "threads": 2,
        "versions": {},
        "cells": {"x": {"goal": 1.5, "times": times}},
        "configurations": {"OpenVINO": {"x": "one"}},
    }
    tried = {"tried": {"OpenVINO": {"one": {"x": 19.0}}}}
    machine = {
        "processor": "P",
        "instruction_sets": ["avx2"],
        "parts": {"m": part, "m, search": tried},
    }
    page = peers_page([machine])
    assert "| m | x | 10.0 (10.0–10.0) | 30.0 (30.0–30.0) | 20.0 (20.0–20.0) |" in page
    assert "| 2.00 (2.00–2.00) | ≥ 1.5 reached |" in page
    assert "| OpenVINO | one | 19.0 |" in page
