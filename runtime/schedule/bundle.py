"""schedule.json: the schedule that a bundle runs by default (``docs/bundle-format.md``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...engines.bundle import EngineBundle
from ...engines.bundle import write_schedule as write_document
from ...engines.bundle.place import SCHEDULE_NAME, bundle_place
from ...engines.errors import BundleError, ScheduleError
from ...engines.manifest import EARLY_EXIT, TUNED_SCHEDULE, Manifest
from .request_schedules import ScheduleResolver
from .schedule import ExitSchedule
from .text import format_schedule


def bundle_schedule(bundle: EngineBundle) -> ExitSchedule:
    """Return the schedule that ``bundle`` runs by default.

    Raises ScheduleError for an invalid schedule, and BundleError for one of another depth.
    """
    schedule = ExitSchedule.from_document(bundle.schedule_document)
    num_layers = bundle.manifest.model.num_layers
    if schedule.num_layers != num_layers:
        raise BundleError(
            str(bundle.path / SCHEDULE_NAME),
            f"schedule: is for {schedule.num_layers} layers; the model has {num_layers}; "
            "write it with 'skipdec schedule set'",
        )
    return schedule


def write_schedule(
    bundle: str | Path,
    schedule: str | ExitSchedule | Mapping[str, Any],
    *,
    horizon: int | None = None,
) -> ExitSchedule:
    """Make ``schedule`` the default of the bundle at ``bundle``, and return it.

    ``schedule`` is an ExitSchedule, its JSON object or its text. ``horizon`` completes a text
    without one; None takes the horizon of the previous schedule, if that one decays. The file is
    replaced atomically, even if it was missing or damaged.

    Raises BundleError without a bundle, and ScheduleError for a schedule of another depth, or a
    text with a horizon that no request reaches.
    """
    model = EngineBundle.read_manifest(bundle).model
    num_layers = model.num_layers
    if isinstance(schedule, Mapping):
        schedule = ExitSchedule.from_document(schedule)
    elif not isinstance(schedule, ExitSchedule):
        previous = _previous_schedule(bundle) or ExitSchedule.full(num_layers)
        resolver = ScheduleResolver(num_layers, previous, model.max_seq_len)
        schedule = resolver.parse(schedule, horizon or previous.lent_horizon)
    if schedule.num_layers != num_layers:
        raise ScheduleError(
            "schedule", f"is for {schedule.num_layers} layers; the model has {num_layers}"
        )
    write_document(bundle_place(Path(bundle)).target, schedule.to_document())
    return schedule


def _previous_schedule(bundle: str | Path) -> ExitSchedule | None:
    try:
        return bundle_schedule(EngineBundle.open(bundle))
    except (BundleError, ScheduleError):
        return None


def untuned_warning(
    manifest: Manifest, own: ExitSchedule, schedules: Iterable[ExitSchedule]
) -> str | None:
    """Return a warning if ``schedules`` skip layers of a model with no record of tuning for it.

    A model that was trained to exit early may skip its top layers. ``own`` is the bundle's
    schedule; if it skips layers itself, ``export`` has warned already.
    """
    tuned = manifest.source.get(TUNED_SCHEDULE)
    if not own.is_full or tuned not in (None, EARLY_EXIT):
        return None
    for schedule in schedules:
        if schedule.is_full or (tuned == EARLY_EXIT and schedule.exits_early):
            continue
        text = f"schedule {format_schedule(schedule)} skips layers"
        if tuned == EARLY_EXIT:
            return (
                f"{text} below others that run, but the model was trained to exit early: its "
                "texts will be poor; add placement=bottom, or run the schedule full"
            )
        return (
            f"{text}, but nothing says that the model was tuned for that: its texts will be poor; "
            "tune it (skipdec tune) and export it again, or run the schedule full"
        )
    return None
