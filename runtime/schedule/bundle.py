"""The schedule that a bundle runs by default: read, replaced, upgraded and checked."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...engines.bundle import EngineBundle
from ...engines.bundle import write_schedule as write_document
from ...engines.bundle.place import SCHEDULE_NAME, bundle_place
from ...engines.bundle.upgrading import upgrade
from ...engines.documents import canonical_text
from ...engines.errors import BundleError, ScheduleError
from ...engines.manifest import TUNED_SCHEDULE, Manifest
from .document import schedule_file
from .schedule import ExitSchedule
from .text import format_schedule, lent_horizon

_LOG = logging.getLogger(__name__)


def bundle_schedule(bundle: EngineBundle) -> ExitSchedule:
    """Return the schedule that ``bundle`` runs by default.

    Raises ScheduleError for an invalid schedule, and BundleError for a plan or presets that do not
    follow from it: another runtime would run other layers.
    """
    schedule = ExitSchedule.from_document(bundle.schedule_document)
    expected = schedule_file(schedule)
    for key in ("plan", "presets"):
        if canonical_text(bundle.schedule_file[key]) != canonical_text(expected[key]):
            raise BundleError(
                str(bundle.path / SCHEDULE_NAME),
                f"{key}: is not what its schedule, {format_schedule(schedule)}, stands for; "
                "write it with 'skipdec schedule set'",
            )
    return schedule


def write_schedule(
    bundle: str | Path,
    schedule: str | ExitSchedule | Mapping[str, Any],
    *,
    horizon: int | None = None,
) -> ExitSchedule:
    """Make ``schedule`` what the bundle at ``bundle`` runs by default, and return it.

    ``schedule`` is an ExitSchedule, its JSON object or its text. ``horizon`` completes a text
    without one; None takes the horizon of the previous schedule, if that one decays. The file is
    replaced atomically, and may have been missing or damaged.

    Raises BundleError without a bundle, and ScheduleError for a schedule of another depth.
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


def upgrade_bundle(bundle: str | Path) -> bool:
    """Convert the bundle at ``bundle`` to the current format; return False if it has that format.

    Only manifest.json and schedule.json are written, each atomically; after an interruption,
    another call finishes. Raises BundleError for a bundle that is incomplete, of another format
    than 2 or being written, and ScheduleError for an invalid schedule.
    """
    return upgrade(
        Path(bundle), lambda document: schedule_file(ExitSchedule.from_document(document))
    )


class UntunedWarning:
    """Logs `untuned_warning` once for a bundle."""

    def __init__(self, manifest: Manifest, own: ExitSchedule) -> None:
        self._is_due = not _skips_by_intent(manifest, own)

    def log(self, schedules: Iterable[ExitSchedule]) -> None:
        """Log the warning, if there is one and it was not logged yet."""
        if self._is_due and (warning := _warning(schedules)):
            self._is_due = False
            _LOG.warning(warning)


def untuned_warning(
    manifest: Manifest, own: ExitSchedule, schedules: Iterable[ExitSchedule]
) -> str | None:
    """Return a warning if ``schedules`` skip layers of a model with no record of tuning for it.

    ``own`` is the bundle's schedule. None if all layers run, if the checkpoint was tuned, or if
    ``own`` skips layers itself, of which ``export`` has warned.
    """
    return None if _skips_by_intent(manifest, own) else _warning(schedules)


def _skips_by_intent(manifest: Manifest, own: ExitSchedule) -> bool:
    return own.is_reduced or TUNED_SCHEDULE in manifest.source


def _warning(schedules: Iterable[ExitSchedule]) -> str | None:
    reduced = next((schedule for schedule in schedules if schedule.is_reduced), None)
    if reduced is None:
        return None
    return (
        f"schedule {format_schedule(reduced)} skips layers, but nothing says that the model was "
        "tuned for that: its texts will be poor; tune it (skipdec tune) and export it again, or "
        "run the schedule full"
    )
