"""A misspelt name gets a suggestion wherever only a few names are allowed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from skipdec.calib.data.data import DataConfig
from skipdec.calib.fitting.space import SpaceConfig
from skipdec.engines.errors import UsageError, did_you_mean
from skipdec.engines.targets import target_of
from skipdec.exporter.config import ExportConfig
from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.schedule.text import parse_schedule
from skipdec.runtime.tokens.sampling import SamplingParams


def schedule(text: str) -> Callable[[], ExitSchedule]:
    return lambda: parse_schedule(text, num_layers=12, horizon=8)


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        (schedule("liner:max=8,min=4"), "linear"),
        (schedule("ful"), "full"),
        (schedule("linear:max=8,min=4,horzon=3"), "horizon"),
        (schedule("2x:placement=botom"), "bottom"),
        (lambda: ExitSchedule.from_document({"num_layer": 3}), "num_layers"),
        (lambda: SamplingParams(**{"temprature": 1}), "temperature"),
        (lambda: DataConfig(**{"path": Path("x"), "preset": "e2"}), "e2e"),
        (lambda: ExportConfig(**{"model": "opt", "quantise": "int8"}), "quantize"),
        (lambda: SpaceConfig(decays=("cosin",)), "cosine"),
        (lambda: target_of("tensort"), "tensorrt"),
    ],
)
def test_misspelt_names_get_a_suggestion(slip: Callable[[], Any], meant: str) -> None:
    with pytest.raises(UsageError, match=f"did you mean '{meant}'\\? allowed: "):
        slip()


def test_unrelated_names_get_no_suggestion() -> None:
    assert did_you_mean("weather", ["linear", "power"]) == ""
    assert did_you_mean("linear", ["linear", "power"]) == "", "an exact match needs no suggestion"
    assert did_you_mean("linear" * 100, ["linear"]) == ""


def test_huge_inputs_get_no_suggestions() -> None:
    """A line of 16 MiB may have a million keys, each of which takes 0.1 ms to compare."""
    keys = {f"temperatur{index}": 1 for index in range(1000)}
    with patch("skipdec.engines.errors.get_close_matches", side_effect=AssertionError):
        for refuse in (lambda: SamplingParams(**keys), lambda: ExitSchedule.from_document(keys)):
            with pytest.raises(UsageError, match="'temperatur7' is unknown; allowed: "):
                refuse()
