"""A warning names schedules that skip layers which the model was not tuned to skip."""

from __future__ import annotations

import pytest
from hollow_bundles import hollow_manifest

from skipdec.engines.manifest import EARLY_EXIT, TUNED_SCHEDULE
from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.schedule.bundle import untuned_warning
from skipdec.runtime.schedule.text import parse_schedule

BOTTOM = "linear:max=4,min=2,horizon=8,placement=bottom"


@pytest.mark.parametrize(
    ("source", "schedule", "words"),
    [
        ({}, "full", None),
        ({}, "2x", "nothing says that the model was tuned"),
        ({}, BOTTOM, "nothing says that the model was tuned"),
        ({TUNED_SCHEDULE: "2x"}, "2x", None),
        ({TUNED_SCHEDULE: EARLY_EXIT}, "full", None),
        ({TUNED_SCHEDULE: EARLY_EXIT}, "2x", "add placement=bottom"),
        ({TUNED_SCHEDULE: EARLY_EXIT}, BOTTOM, None),
    ],
)
def test_only_layers_tuned_for_skipping_are_skipped_silently(
    source: dict[str, str], schedule: str, words: str | None
) -> None:
    manifest = hollow_manifest(6).model_copy(update={"source": source})
    chosen = parse_schedule(schedule, num_layers=6, horizon=8)
    warning = untuned_warning(manifest, ExitSchedule.full(6), [ExitSchedule.full(6), chosen])
    assert (warning is None) == (words is None)
    assert (words or "") in (warning or "")
    assert untuned_warning(manifest, parse_schedule(BOTTOM, num_layers=6), [chosen]) is None
