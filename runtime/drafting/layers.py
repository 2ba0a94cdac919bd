"""Which layers of the model draft, and what running them costs."""

from __future__ import annotations

from ...engines.manifest import DraftLayer, Manifest
from ..schedule import LayerPlan
from .config import DraftPart


def draft_plan(
    part: DraftPart, num_layers: int, draft_layer: DraftLayer | None = None
) -> LayerPlan:
    """Return the layers that ``part`` runs of a model of ``num_layers``.

    Worked, 12 layers: ``ends:3`` runs 0, 10, 11 and ``first:3`` runs 0, 1, 2. ``trained`` with a
    draft layer behind layer 0 runs 0 and 12: the draft layer has the number behind the model's last
    one.
    """
    if draft_layer is not None and part.name == "trained":
        return LayerPlan((*range(draft_layer.behind), num_layers))
    assert part.number is not None, "a part that runs layers of the model names their number"
    if part.name == "first":
        return LayerPlan(tuple(range(part.number)))
    return LayerPlan((0, *range(num_layers - part.number + 1, num_layers)))


def depth_problem(part: DraftPart, num_layers: int) -> str | None:
    """Return the problem of a part with as many layers as the model has, or more; else None."""
    if part.number is None or part.number < num_layers:
        return None
    return (
        f"{part} runs {part.number} layers of {num_layers}; allowed: 1 to {num_layers - 1}, and "
        "2 to 4 are fast"
    )


def byte_share(manifest: Manifest, plan: LayerPlan) -> float:
    """Return the bytes that a draft step reads ÷ those of a pass, heads included: its cost.

    At small batches engines run at about memory bandwidth, so bytes predict time. A draft scores
    tokens by the bundle's narrow head, if it has one.
    """
    embed, *layers, head = (engine.step_bytes for engine in manifest.engines)
    whole = embed + sum(layers) + head
    if manifest.draft_layer is not None:
        layers.append(manifest.draft_layer.engine.step_bytes)
    if manifest.draft_head is not None:
        head = manifest.draft_head.engine.step_bytes
    return (embed + sum(layers[layer] for layer in plan) + head) / whole
