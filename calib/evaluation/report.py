"""What an evaluation found, as a JSON document."""

from __future__ import annotations

import math
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from ..engines.host.processor import processor_name
from ..runtime.schedule.text import format_schedule
from .evaluation import Evaluation, Row


def report_document(evaluation: Evaluation, *, threads: int | None = None) -> dict[str, Any]:
    """Return everything as one JSON object; figures that are not defined are null.

    ``threads``: of the engines on a CPU, as the caller chose; None if unknown.
    """
    config = evaluation.config
    document = {
        "skipdec": version("skipdec"),
        "processor": processor_name(),
        "threads": threads,
        "data": config.data.model_dump(mode="json"),
        "num_prompts": len(evaluation.prompts),
        "num_dropped": evaluation.num_dropped,
        "batch_size": config.batch_size,
        "temperature": config.temperature,
        "seed": config.seed,
        "lowercase": config.metrics.lowercase,
        "bert_model": config.metrics.bert_model and str(config.metrics.bert_model),
        "resamples": config.resamples,
        "confidence": config.confidence,
        "score_only": config.score_only,
        "by_position": config.by_position,
        "equal_lengths": config.equal_lengths,
        "rows": [_row_document(row) for row in evaluation.rows],
        "averages": [asdict(average) for average in evaluation.averages],
        "examples": [
            {
                "source": example.prompt.source,
                "prompt": example.prompt.text,
                "references": list(example.prompt.references),
                "texts": [asdict(text) for text in example.texts],
            }
            for example in evaluation.examples
        ],
    }
    return {key: _finite(value) for key, value in document.items()}


def _row_document(row: Row) -> dict[str, Any]:
    run, prepared = row.run, row.prepared
    return {
        "bundle": row.label,
        "path": str(prepared.choice.path),
        "digest": prepared.bundle.manifest.digest,
        "target": prepared.bundle.manifest.target,
        "device": row.device,
        "precision": prepared.bundle.manifest.precision.model_dump(mode="json"),
        "max_tokens": prepared.max_tokens,
        "num_cut": prepared.num_cut,
        "schedule": run.name,
        "schedule_text": format_schedule(run.schedule),
        "num_layers": run.schedule.num_layers,
        "nominal_depth": run.schedule.average_budget(),
        "wall_seconds": run.wall_seconds,
        "chunk_seconds": run.chunk_seconds,
        "full_depth_seconds": run.full_depth_seconds,
        "generated_tokens": run.num_tokens,
        "speedup": row.speedup,
        "token_speedup": row.token_speedup,
        "metrics": {name: asdict(figure) for name, figure in row.figures.items()},
        "positions": None if row.positions is None else asdict(row.positions),
    }


def _finite(value: Any) -> Any:  # noqa: ANN401  (any JSON value)
    """``value`` with null in place of nan and the infinities, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
