"""The JSON document of an evaluation, and the directory that holds it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...engines.bundle.place import Place
from ...engines.documents import write_file
from ...engines.host.installation import own_version
from ...engines.host.processor import processor_name
from ...runtime.schedule.text import format_schedule
from .evaluation import Evaluation, Row
from .markdown import report_markdown
from .plots import plot_pareto, plot_positions

DOCUMENT, REPORT, PICTURE = "evaluation.json", "evaluation.md", "pareto.png"
POSITIONS_PICTURE = "positions.png"
_FILES = {DOCUMENT, REPORT, PICTURE, POSITIONS_PICTURE}


def report_document(evaluation: Evaluation, *, threads: int | None = None) -> dict[str, Any]:
    """Return everything as one JSON object; undefined figures are null.

    ``threads`` is the caller's number of engine threads on a CPU; None if unknown.
    """
    config = evaluation.config
    document = {
        "skipdec": own_version(),
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
        "prompt_template": prepared.template.text,
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
        "disturbed": row.disturbed or None,
        "metrics": {name: asdict(figure) for name, figure in row.figures.items()},
        "positions": None if row.positions is None else asdict(row.positions),
    }


def _finite(value: Any) -> Any:  # noqa: ANN401  (any JSON value)
    """Replace nan and infinities, which JSON lacks, with null."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class EvaluationPlace(Place):
    """Directory of an evaluation; ``force`` replaces another evaluation but never other files."""

    def problems(self, *, force: bool) -> list[str]:
        """Return reasons why nothing may be written here; the parent folder must exist."""
        directory = self.target
        if not directory.parent.is_dir():
            return [f"{directory.parent} is not a directory; make it"]
        if not directory.exists():
            return super().problems(force=force)
        if not directory.is_dir():
            return ["is a file; name a directory"]
        foreign = sorted({entry.name for entry in directory.iterdir()} - _FILES)
        if foreign:
            listed = ", ".join(foreign[:5])
            return [f"holds {listed}, not a result of skipdec evaluate; name another"]
        if not force:
            return ["exists; --force replaces it, or name another"]
        return super().problems(force=force)


def evaluation_place(output: Path) -> EvaluationPlace:
    """Return the place of the evaluation in ``output``."""
    return EvaluationPlace(output.resolve(), DOCUMENT, "an evaluation")


def pictures(evaluation: Evaluation) -> tuple[str, ...]:
    """Return the pictures to draw: quality over speed if texts were generated; positions."""
    names = [] if evaluation.config.score_only else [PICTURE]
    return (*names, *([POSITIONS_PICTURE] if evaluation.config.by_position else []))


def write_evaluation(
    directory: Path, evaluation: Evaluation, document: dict[str, Any], *, force: bool
) -> tuple[str, ...]:
    """Write evaluation.json, evaluation.md and, with matplotlib, the ``pictures``.

    Returns the names of the files. An existing ``directory`` is replaced atomically, and only by a
    complete result. Raises as ``Place.replaced`` does.
    """
    with evaluation_place(directory).replaced(force=force) as partial:
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        write_file(partial / DOCUMENT, text)
        write_file(partial / REPORT, report_markdown(evaluation))
        if find_spec("matplotlib") is not None:
            if PICTURE in pictures(evaluation):
                plot_pareto(evaluation, partial / PICTURE)
            if POSITIONS_PICTURE in pictures(evaluation):
                plot_positions(evaluation, partial / POSITIONS_PICTURE)
        return tuple(sorted(path.name for path in partial.iterdir()))
