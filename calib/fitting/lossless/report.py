"""Report of a fit of drafts: a table on a console and a JSON document."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ....engines.host.console import Table
from .lossless import Candidate, LosslessFit

if TYPE_CHECKING:
    from rich.console import Console


def lossless_document(fit: LosslessFit, *, threads: int | None = None) -> dict[str, Any]:
    """Return the draft file and all candidates as one JSON object."""
    return {
        **fit.draft_file(threads=threads).to_document(),
        "acceptance": {part: asdict(share) for part, share in fit.acceptance.items()},
        "costs": {"passes": list(fit.costs.passes), "draft_steps": dict(fit.costs.steps)},
        "candidates": [
            {
                "draft": str(one.draft),
                "tokens_per_pass": one.simulated.drafts.tokens_per_pass,
                "simulated_gain": one.simulated.gain,
                "gain": one.gain,
            }
            for one in fit.candidates
        ],
    }


def print_lossless(console: Console, fit: LosslessFit) -> None:
    """Print how often each part holds, the candidates, and the chosen one."""
    inputs = fit.inputs
    console.print(
        f"{len(inputs.measured)} prompts measured, {len(inputs.teaching)} more taught n-grams; "
        f"up to {inputs.max_tokens} tokens, one row"
    )
    shares = [
        (
            part,
            f"{share.proposed:.0%}",
            f"{share.first:.2f}",
            f"{share.held:.2f}",
            "" if part not in fit.costs.steps else f"{fit.costs.steps[part]:.2f}",
        )
        for part, share in fit.acceptance.items()
    ]
    headings = ("part", "proposes\nat", "first\nholds", "hold\nof 7", "step,\nin passes")
    Table(headings, shares).print(console)
    rows = [_row(one) for one in fit.candidates]
    columns = (
        "draft",
        "tokens\nper pass",
        "gain of steps,\nsimulated",
        "gain of calls,\nmeasured",
    )
    Table(columns, rows).print(console)
    console.print(f"chosen: {fit.chosen.draft}, {fit.chosen.gain}", markup=False)


def _row(one: Candidate) -> tuple[str, ...]:
    return (
        str(one.draft),
        f"{one.simulated.drafts.tokens_per_pass:.2f}",
        f"{one.simulated.gain:.2f}×",
        "" if one.gain is None else str(one.gain),
    )
