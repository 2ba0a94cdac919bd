"""The contents of schedule.json: a schedule, its plan as lists of layers, and the presets.

``docs/bundle-format.md`` specifies it. A runtime without decays and placements runs the plan, which
follows from the schedule, and the presets, which follow from the number of layers. This one reads
the schedule and compares the rest.
"""

from __future__ import annotations

from typing import Any

from ...engines.constants import integer
from ...engines.errors import ScheduleError
from .presets import fitting_presets, preset_budgets, speedup_of
from .schedule import ExitSchedule
from .text import format_schedule, lent_horizon

MAX_ENTRIES = integer("max_plan_entries")  # of all lists of layers of a plan
MAX_PRESET_LAYERS = integer("max_preset_layers")  # of deeper models only "full" is resolved


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
        "horizon": lent_horizon(schedule),
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
    """Each budget from the largest down, and after which part of the horizon it begins."""
    largest, smallest = preset_budgets(speedup_of(name.removesuffix("x")), num_layers)
    fall = largest - smallest
    horizon = f"horizon={fall + 1}"  # one token a budget
    falling = ExitSchedule.parse(f"{name}:{horizon}", num_layers=num_layers)
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
