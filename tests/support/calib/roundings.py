"""Plans of tiny models on random tokens, for tests of error-aware rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from calibrations import random_examples

from skipdec.calib.rounding.config import RoundingConfig
from skipdec.calib.rounding.rounding import RoundingPlan
from skipdec.exporter.checkpoint.checkpoint import open_checkpoint
from skipdec.exporter.config import CheckpointSource
from skipdec.runtime.schedule.text import parse_schedule


def rounding_plan(
    checkpoint: Path,
    output: Path,
    schedule: str = "full",
    **options: Any,  # noqa: ANN401
) -> RoundingPlan:
    """Return a plan with the token ids of ``random_examples``: seeds 2 to round on, 3 held out."""
    config = RoundingConfig(
        model=str(checkpoint),
        data={"path": Path("rows.jsonl")},
        output=output,
        **{"block_size": 16, "batch_tokens": 24, "schedule": schedule, **options},
    )
    opened = open_checkpoint(CheckpointSource(model=str(checkpoint)))
    return RoundingPlan(
        config=config,
        checkpoint=opened,
        schedule=parse_schedule(schedule, num_layers=opened.model.num_layers),
        observed=random_examples(2),
        held_out=random_examples(3),
        warnings=(),
    )
