"""The schedule that a bundle runs by default, changed without a rebuild."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...engines.bundle import EngineBundle
from ...engines.bundle import write_schedule as write_document
from ...engines.bundle.place import bundle_place
from ...engines.errors import BundleError, ScheduleError
from .resolved import bundle_schedule, schedule_file
from .schedule import ExitSchedule
from .text import lent_horizon


def write_schedule(
    bundle: str | Path,
    schedule: str | ExitSchedule | Mapping[str, Any],
    *,
    horizon: int | None = None,
) -> ExitSchedule:
    """Make ``schedule`` what the bundle at ``bundle`` runs by default, and return it.

    ``schedule``: an ExitSchedule, its JSON object or its text. ``horizon``: of a text that names
    none; None is that of the schedule before, if it decays. One file is replaced, in one step; it
    may be missing or damaged before.

    Raises BundleError if there is no bundle, ScheduleError for what does not fit its depth.
    """
    num_layers = EngineBundle.read_manifest(bundle).model.num_layers
    if isinstance(schedule, Mapping):
        schedule = ExitSchedule.from_document(schedule)
    elif not isinstance(schedule, ExitSchedule):
        horizon = horizon or _horizon_before(bundle)
        schedule = ExitSchedule.parse(schedule, num_layers=num_layers, horizon=horizon)
    if schedule.num_layers != num_layers:
        raise ScheduleError(
            "schedule", f"is for {schedule.num_layers} layers; the model has {num_layers}"
        )
    write_document(bundle_place(Path(bundle)).target, schedule_file(schedule))
    return schedule


def _horizon_before(bundle: str | Path) -> int | None:
    try:
        before = bundle_schedule(EngineBundle.open(bundle))
    except (BundleError, ScheduleError):
        return None
    return lent_horizon(before)
