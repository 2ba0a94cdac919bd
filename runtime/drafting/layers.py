"""Which layers of the model draft, and what running them costs."""

from __future__ import annotations

from ...engines.manifest import Manifest
from ..schedule import LayerPlan
from .config import DraftPart


def draft_plan(part: DraftPart, num_layers: int) -> LayerPlan:
    """Return the layers that ``part`` runs of a model of ``num_layers``.

    Worked, 12 layers: ``ends:3`` runs 0, 10, 11 and ``first:3`` runs 0, 1, 2.
    """
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
    if manifest.draft_head is not None:
        head = manifest.draft_head.engine.step_bytes
    return (embed + sum(layers[layer] for layer in plan) + head) / _pass_bytes(manifest)


def trained_share(manifest: Manifest) -> float:
    """Return the same for a step of the bundle's trained drafts.

    The first step after a pass reads about a tenth more: the weights that join the pass's states.
    """
    draft = manifest.trained_draft
    assert draft is not None, "drafts were resolved against the bundle"
    read = (draft.entry, draft.layer, draft.head, manifest.engines[0])
    return sum(engine.step_bytes for engine in read) / _pass_bytes(manifest)


def _pass_bytes(manifest: Manifest) -> int:
    """Return the bytes that a pass reads at full depth."""
    return sum(engine.step_bytes for engine in manifest.engines)
