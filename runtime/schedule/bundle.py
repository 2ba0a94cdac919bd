"""schedule.json: the schedule that a bundle runs by default, its plan and the presets.

``docs/bundle-format.md`` specifies it. Runtimes without decays and placements run the plan, which
follows from the schedule, and the presets, which follow from the number of layers. This one reads
the schedule and compares the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...engines.bundle import EngineBundle
from ...engines.bundle import write_schedule as write_document
from ...engines.bundle.place import SCHEDULE_NAME, bundle_place
from ...engines.constants import integer
from ...engines.documents import canonical_text
from ...engines.errors import BundleError, ScheduleError
from ...engines.manifest import EARLY_EXIT, TUNED_SCHEDULE, Manifest
from .presets import fitting_presets, preset_budgets, speedup_of
from .request_schedules import ScheduleResolver
from .schedule import ExitSchedule
from .text import format_schedule, parse_schedule

MAX_ENTRIES = integer("max_plan_entries")  # in all lists of layers of a plan
MAX_PRESET_LAYERS = integer("max_preset_layers")  # deeper models have only "full"

_LOG = logging.getLogger(__name__)


def bundle_schedule(bundle: EngineBundle) -> ExitSchedule:
    """Return the schedule that ``bundle`` runs by default.

    Raises ScheduleError for an invalid schedule, and BundleError for a plan or presets that do not
    follow from it, because another runtime would run other layers.
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
    """Make ``schedule`` the default of the bundle at ``bundle``, and return it.

    ``schedule`` is an ExitSchedule, its JSON object or its text. ``horizon`` completes a text
    without one; None takes the horizon of the previous schedule, if that one decays. The file is
    replaced atomically, and may have been missing or damaged.

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
    write_document(bundle_place(Path(bundle)).target, schedule_file(schedule))
    return schedule


def _previous_schedule(bundle: str | Path) -> ExitSchedule | None:
    try:
        return bundle_schedule(EngineBundle.open(bundle))
    except (BundleError, ScheduleError):
        return None


class UntunedWarning:
    """Logs `untuned_warning` once for a bundle."""

    def __init__(self, manifest: Manifest, own: ExitSchedule) -> None:
        self._manifest = manifest
        self._own = own
        self._is_due = True

    def log(self, schedules: Iterable[ExitSchedule]) -> None:
        """Log the warning, if there is one and it was not logged yet."""
        if self._is_due and (warning := untuned_warning(self._manifest, self._own, schedules)):
            self._is_due = False
            _LOG.warning(warning)


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


def schedule_file(schedule: ExitSchedule) -> dict[str, Any]:
    """Return the contents of schedule.json without its digest.

    Raises ScheduleError for a plan of more than ``MAX_ENTRIES``: over 1,000 layers, in many steps.
    """
    return {
        "plan": plan_document(schedule),
        "presets": preset_documents(schedule.num_layers),
        "schedule": schedule.to_document(),
    }


def plan_document(schedule: ExitSchedule) -> dict[str, Any]:
    """Return the JSON object of the plan: which layers each generated and prompt token runs."""
    entries = sum(len(segment.plan) for segment in schedule.segments)
    if entries > MAX_ENTRIES:
        raise ScheduleError(
            f"schedule {format_schedule(schedule):.80}",
            f"its plans list {entries:,} layers altogether; allowed: {MAX_ENTRIES:,}; choose one "
            "that falls in fewer steps, e.g. step:max=64,min=16,horizon=64,steps=4",
        )
    return {
        "horizon": schedule.lent_horizon,
        "num_layers": schedule.num_layers,
        "prompt": _prompt_document(schedule),
        "segments": [
            {"layers": list(segment.plan.layers), "start": segment.start}
            for segment in schedule.segments
        ],
        "text": format_schedule(schedule),
    }


def preset_documents(num_layers: int) -> dict[str, Any]:
    """Return the JSON objects, by name, of full depth and of all presets that fit the model."""
    full: dict[str, Any] = {
        "prompt": None,
        "segments": [{"layers": list(range(num_layers)), "start": 0}],
        "text": "full",
    }
    names = fitting_presets(num_layers) if num_layers <= MAX_PRESET_LAYERS else ()
    return {"full": full, **{name: _preset_document(name, num_layers) for name in names}}


def _prompt_document(schedule: ExitSchedule) -> dict[str, Any] | None:
    fractions = [schedule.prompt_fraction(layer) for layer in range(schedule.num_layers)]
    denominators = {denominator for _, denominator in filter(None, fractions)}
    if not denominators:
        return None
    (denominator,) = denominators
    return {
        "denominator": denominator,
        "numerators": [None if fraction is None else fraction[0] for fraction in fractions],
    }


def _preset_document(name: str, num_layers: int) -> dict[str, Any]:
    """Return each budget from the largest down, and the share of the horizon before it."""
    largest, smallest = preset_budgets(speedup_of(name.removesuffix("x")), num_layers)
    fall = largest - smallest
    horizon = f"horizon={fall + 1}"  # one token a budget
    falling = parse_schedule(f"{name}:{horizon}", num_layers=num_layers)
    first, *others = (list(segment.plan.layers) for segment in falling.segments)
    return {
        "prompt": None,
        "segments": [
            {"layers": first, "start": 0},
            *(
                {"after": [2 * step - 1, 2 * fall], "layers": layers}
                for step, layers in enumerate(others, 1)
            ),
        ],
        "text": format_schedule(falling).replace(horizon, "horizon={horizon}"),
    }
