"""The page of a GPU check shows figures and words, and judges targets as set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.gpu.page import judged_aims, page
from benchmarks.gpu.parts import CheckConfig, parts_of
from benchmarks.gpu.record import Outcome, Record


def record_of(**results: dict[str, Any]) -> Record:
    outcomes = (
        Outcome(name=name.replace("_", " "), state="passed", seconds=3, gpu="H100", result=result)
        for name, result in results.items()
    )
    return Record(measured={}, outcomes=tuple(outcomes))


def speed(schedule: str, milliseconds: float) -> Record:
    measured = {
        "batch_size": 8,
        "name": schedule,
        "step_milliseconds_p50": milliseconds,
        "decode_speedup": {"value": 1.5, "low": 1.4, "high": 1.6, "disturbed": ""},
    }
    baseline = {"batch_size": 8, "step_milliseconds": [0.95, 1.0, 5.0]}
    return record_of(
        speed={"measurements": [measured]}, compiled_Hugging_Face={"baselines": [baseline]}
    )


@pytest.mark.parametrize(
    ("schedule", "milliseconds", "met"), [("full", 1.0, True), ("2x", 0.61, False)]
)
def test_aims_compare_with_the_median_of_the_compiled_model(
    schedule: str, milliseconds: float, met: bool
) -> None:
    found = {
        aim.split("`")[1]: (seen, verdict)
        for aim, seen, verdict in judged_aims(speed(schedule, milliseconds))
    }
    assert found[schedule] == (f"{milliseconds:.2f} at batch 8", met)
    assert found["5x"] == ("not measured", None)


def test_the_page_shows_figures_and_parts_that_have_not_run(tmp_path: Path) -> None:
    config = CheckConfig(work=tmp_path)
    shown = page(speed("full", 0.8), parts_of(config), config)
    assert shown.count("**not run yet**") == len(parts_of(config)) - 2
    assert "0.80 at batch 8, met" in shown
    assert "| 8 | full | 0.8 | 1.50× |" in shown
    assert "| 8 | 0.95, 1, 5 |" in shown


def test_the_page_shows_what_an_attempt_did_and_said(tmp_path: Path) -> None:
    config = CheckConfig(work=tmp_path)
    words = "build ended with 1: compute capability 9.0 is not supported"
    record = record_of(tensorrt={"done": ["export"], "words": words})
    shown = page(record, parts_of(config), config)
    assert "| tried | 3 | done: export |" in shown
    assert words in shown
