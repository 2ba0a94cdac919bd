"""Bundles of an older format, brought to the present one without a new export."""

from __future__ import annotations

from pathlib import Path

from ...engines.bundle.upgrading import upgrade
from .resolved import schedule_file
from .schedule import ExitSchedule


def upgrade_bundle(bundle: str | Path) -> bool:
    """Bring the bundle at ``bundle`` to the present format; False if it has that already.

    Only its manifest.json and schedule.json are written, each in one step, and no engine; where it
    is interrupted, calling it again finishes. Raises BundleError for a bundle that is not whole, of
    another format than 2, or being written, and ScheduleError for a schedule that is none.
    """
    return upgrade(
        Path(bundle), lambda document: schedule_file(ExitSchedule.from_document(document))
    )
