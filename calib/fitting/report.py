"""What a fit found, as a JSON document."""

from __future__ import annotations

import math
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from ..engines.host.processor import processor_name
from ..runtime.schedule.text import format_schedule
from .fit import Candidate, Fit
from .fit_loss import LossDifference
from .fit_speed import MeasuredSpeedup
from .sensitivity import SensitivityRow


def report_document(fit: Fit, machine: dict[str, Any]) -> dict[str, Any]:
    """Return everything as one JSON object.

    ``machine``: what the caller knows about where it ran, e.g. the number of threads. Losses are
    nats a token; speed-ups are of the steps after the prompt unless the key says otherwise.
    """
    config, inputs = fit.config, fit.inputs
    manifest = fit.bundle.manifest
    return {
        "skipdec": version("skipdec"),
        "processor": processor_name(),
        **machine,
        "model": manifest.model.name,
        "source": config.source.name,
        "digest": manifest.digest,
        "precision": manifest.precision.model_dump(mode="json"),
        "data": config.data.model_dump(mode="json"),
        "num_rows": len(inputs.data.examples),
        "num_examples": len(inputs.examples),
        "num_truncated": inputs.data.num_truncated,
        "num_cut": inputs.data.num_cut,
        "num_dropped": inputs.data.num_dropped,
        "goal": {"kind": type(config.goal).__name__, **vars(config.goal)},
        "speedup_of": config.speedup_of,
        "space": asdict(config.space),
        "budget": config.search.budget,
        "seed": config.search.seed,
        "horizon": inputs.horizon,
        "median_completion": inputs.data.median_completion,
        "longest_completion": inputs.longest_completion,
        "prompt_tokens": len(inputs.prompt),
        "generated_tokens": inputs.num_tokens,
        "num_scored": fit.search.num_scored,
        "is_exhaustive": fit.search.is_exhaustive,
        "rounds": [
            {"candidates": candidates, "examples": examples}
            for candidates, examples in fit.search.round_sizes
        ],
        "fixed_time": fit.speed.fixed,
        "fixed_prompt_time": fit.speed.prompt_fixed,
        "prompt_share": fit.speed.prompt_share,
        "full": _candidate(fit.full),
        "chosen": _candidate(fit.chosen),
        "measured": fit.measured and _measured(fit.measured),
        "rejected": [_measured(entry) for entry in fit.rejected],
        "front": [_candidate(entry) for entry in fit.front],
        "others": [_candidate(entry) for entry in fit.others],
        "sensitivity": [_row(row) for row in fit.sensitivity],
    }


def _candidate(candidate: Candidate) -> dict[str, Any]:
    return {
        "schedule_text": format_schedule(candidate.schedule),
        "schedule": candidate.schedule.to_document(),
        "average_budget": candidate.average_budget,
        "loss": candidate.loss,
        "over_full": _difference(candidate.over_full),
        "predicted_speedup": candidate.predicted.steps,
        "expected_speedup": candidate.expected.steps,
        "predicted_call_speedup": candidate.predicted.call,
        "expected_call_speedup": candidate.expected.call,
    }


def _measured(measured: MeasuredSpeedup) -> dict[str, Any]:
    return {
        "schedule_text": format_schedule(measured.schedule),
        "speedup": measured.steps,
        "prompt_speedup": measured.prompt,
        "call_speedup": measured.call,
        "prompt_share": measured.prompt_share,
        "repetitions": measured.repetitions,
    }


def _row(row: SensitivityRow) -> dict[str, Any]:
    return {
        "varied": row.variation.varied,
        "value": row.variation.value,
        "is_best": row.is_best,
        "schedule_text": format_schedule(row.variation.schedule),
        "loss": row.loss,
        "over_best": _difference(row.difference),
        "expected_speedup": row.speedups.steps,
        "expected_call_speedup": row.speedups.call,
        "average_budget": row.average_budget,
    }


def _difference(difference: LossDifference) -> dict[str, float | None]:
    error = difference.standard_error
    return {"value": difference.value, "standard_error": None if math.isnan(error) else error}
