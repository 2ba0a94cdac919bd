"""Which layers of the model draft, and what running them costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from ...engines.errors import ScheduleError
from ...engines.manifest import DraftLayer, Manifest
from ..schedule import ExitSchedule, LayerPlan
from .config import DraftPart


def draft_plan(
    part: DraftPart, own: ExitSchedule, draft_layer: DraftLayer | None = None
) -> LayerPlan:
    """Return the layers that ``part`` runs; ``own`` is the bundle's schedule.

    Worked, 12 layers, the schedule's placement ``top`` with one warm-up layer: ``layers:3`` and
    ``ends:3`` run 0, 10, 11, ``first:3`` runs 0, 1, 2. ``trained`` with a draft layer behind layer
    0 runs 0 and 12: the draft layer has the number behind the model's last one.

    Raises ScheduleError if the placement has no such number of layers.
    """
    if draft_layer is not None and part.name == "trained":
        return LayerPlan((*range(draft_layer.behind), own.num_layers))
    assert part.number is not None, "a part that runs layers of the model names their number"
    return LayerPlan(_LAYERS[part.name](own, part.number))


def depth_problem(part: DraftPart, num_layers: int) -> str | None:
    """Return the problem of a part with as many layers as the model has, or more; else None."""
    if part.number is None or part.number < num_layers:
        return None
    return (
        f"{part} runs {part.number} layers of {num_layers}; allowed: 1 to {num_layers - 1}, and "
        "2 to 4 are fast"
    )


def least_layers(part: DraftPart, own: ExitSchedule) -> int:
    """Return the smallest number of layers that the part could name."""
    for number in range(1, own.num_layers):
        try:
            draft_plan(replace(part, number=number), own)
        except ScheduleError:
            continue
        return number
    return own.num_layers


def byte_share(manifest: Manifest, plan: LayerPlan, *, narrow: bool = False) -> float:
    """Return the bytes that a draft step reads ÷ those of a pass, heads included: its cost.

    At small batches engines run at about memory bandwidth, so bytes predict time. ``narrow`` says
    that the draft scores tokens by the bundle's narrow head.
    """
    embed, *layers, head = (engine.step_bytes for engine in manifest.engines)
    whole = embed + sum(layers) + head
    if manifest.draft_layer is not None:
        layers.append(manifest.draft_layer.engine.step_bytes)
    if narrow and manifest.draft_head is not None:
        head = manifest.draft_head.engine.step_bytes
    return (embed + sum(layers[layer] for layer in plan) + head) / whole


def _placed(own: ExitSchedule, count: int) -> tuple[int, ...]:
    warmup = max(1, own.warmup_layers)  # of full depth none; drafts without layer 0 never hold
    placed = own.changed(
        decay="constant",
        max_exit_layer=count,
        min_exit_layer=count,
        warmup_layers=warmup,
        prompt="full",
    )
    return placed.plan(0).layers


def _ends(own: ExitSchedule, count: int) -> tuple[int, ...]:
    return (0, *range(own.num_layers - count + 1, own.num_layers))


def _first(own: ExitSchedule, count: int) -> tuple[int, ...]:
    return tuple(range(count))


_LAYERS: Mapping[str, Callable[[ExitSchedule, int], tuple[int, ...]]] = MappingProxyType(
    {"layers": _placed, "ends": _ends, "first": _first}
)
