"""What a bundle knows of its model's tuning: whether it was taught to skip layers."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ...engines.manifest import TUNED_SCHEDULE, Manifest
from .schedule import ExitSchedule
from .text import format_schedule

_LOG = logging.getLogger(__name__)


class UntunedWarning:
    """Says of a bundle's schedules, once, that texts will be poor: see `untuned_warning`."""

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
    """What to say of ``schedules`` where nothing shows that the model was tuned to skip layers.

    ``own`` is the bundle's. None if they run all layers, if the bundle's checkpoint was tuned, or
    if ``own`` is reduced: then ``export`` has said it.
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
