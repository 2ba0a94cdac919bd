"""Figures are judged by their targets, and an invalid probe proves nothing."""

from __future__ import annotations

from typing import Any

import pytest
from bench.cpu_figures import (
    SIX_LAYERS,
    Figure,
    bench_table,
    decoding_figures,
    figures_table,
)

ENTRY = {
    "batch_size": 1,
    "realised_depth": 24.0,
    "time_to_first_token": 0.1,
    "step_milliseconds_p50": 30.0,
    "step_milliseconds_p95": 31.0,
    "tokens_per_second": 30.0,
    "wall_seconds": 2.0,
    "speedup": 1.0,
    "decode_speedup": 1.0,
    "predicted_speedup": 1.0,
    "bandwidth_fraction": 0.93,
    "best_bandwidth_fraction": 0.95,
}


def document(fraction: float, gained: float, *, valid: bool = True) -> dict[str, Any]:
    return {
        "probe_is_valid": valid,
        "bandwidth_bytes_per_second": 4e10,
        "bandwidth_passes": 10,
        "config": {"prompt_length": 128, "num_tokens": 64, "repetitions": 5},
        "measurements": [
            {**ENTRY, "name": "full", "bandwidth_fraction": fraction},
            {**ENTRY, "name": "2x"},
            {**ENTRY, "name": "4x"},
            {**ENTRY, "name": SIX_LAYERS, "decode_speedup": gained, "predicted_speedup": 3.24},
            {**ENTRY, "name": "full", "batch_size": 8, "bandwidth_fraction": 0.1},
        ],
    }


@pytest.mark.parametrize(
    ("quantize", "results", "met"),
    [
        ("int8", document(0.93, 3.2), [True, True]),
        ("int8", document(0.88, 3.0), [False, False]),
        ("int4", document(0.88, 3.2), [True, True]),
        ("int8", document(1.2, 3.2, valid=False), [False, True]),
    ],
)
def test_figures_against_their_targets(
    quantize: str, results: dict[str, Any], met: list[bool]
) -> None:
    assert [figure.met for figure in decoding_figures(quantize, results)] == met


def test_tables_are_markdown() -> None:
    table = figures_table([Figure("a", "≤ 1", "2", False), Figure("b", "≤ 1", "1", True)])
    assert table.splitlines()[2:] == ["| a | ≤ 1 | 2 | no |", "| b | ≤ 1 | 1 | yes |"]
    lines = [line for line in bench_table(document(0.9, 3)).splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 5
    assert len({line.count("|") for line in lines}) == 1
