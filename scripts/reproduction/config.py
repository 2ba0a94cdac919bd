"""Options of a reproduction of the paper's table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from reproduction.columns import COLUMNS
from skipdec.calib.tuning.start import read_fresh_model
from skipdec.engines.checking import ValidatedConfig
from skipdec.engines.errors import SkipDecError
from skipdec.engines.manifest import FloatType
from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.schedule.text import parse_schedule

UNTUNED, CONTROL = "untuned", "full"  # not in COLUMNS: the base at k×; full depth tuned as long
MIXTURE = "mixture"  # not in COLUMNS: one model for all speed-ups


class ReproductionConfig(ValidatedConfig):
    """A table: models of several seeds, each tuned at every speed-up of every column.

    They start with new weights of ``sizes``, or from the pretrained ``model`` in that directory.
    With ``mixture``, one more model of each seed is tuned at all speed-ups together. ``train`` and
    ``dev`` are CSV files with the columns of E2E. ``work`` keeps every checkpoint, bundle and
    evaluation, which are reused if they were made with the same options. Every tuned model sees
    ``tuning_steps`` batches after the same base.
    """

    train: Path
    dev: Path
    work: Path
    model: Path | None = None
    prompt_template: str | None = Field(default=None, description="of a pretrained model's prompts")
    sizes: str = Field(default="layers=12,width=128,heads=4,positions=256")
    vocab_size: int = Field(default=1000, ge=300)
    max_length: int = Field(default=192, ge=2, description="prompt and completion, tokens")
    seeds: tuple[int, ...] = Field(default=(0, 1), min_length=1)
    speedups: tuple[int, ...] | None = Field(
        default=None, min_length=1, description="None: 2 to 6, and 8 from 16 layers on"
    )
    columns: tuple[str, ...] = Field(default=tuple(COLUMNS), min_length=1)
    mixture: bool = False
    distill: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="weight of the base at full depth, in all tuned models",
    )
    base_epochs: float = Field(default=2.0, gt=0)
    base_learning_rate: float = Field(default=3e-3, gt=0)
    tuning_steps: int = Field(default=300, ge=1)
    tuning_learning_rate: float = Field(default=3e-3, gt=0)
    parts: int = Field(default=4, ge=1, description="per step, each of texts of similar length")
    batch_size: int = Field(default=64, ge=1, description="examples per step")
    bf16: bool = True
    dtype: FloatType = Field(default="float32", description="of the evaluated bundles")
    limit: int | None = Field(default=None, ge=1, description="distinct prompts of dev; None: all")
    device: Literal["cpu", "cuda"] = Field(default="cpu", description="that evaluates bundles")
    evaluation_batch_size: int = Field(default=16, ge=1)
    resamples: int = Field(default=1000, ge=1)
    jobs: int = Field(default=1, ge=1, description="models to tune at once, each on its own cores")

    def _problems(self) -> Iterator[str]:
        for field in ("seeds", "speedups", "columns"):
            values = getattr(self, field) or ()
            if len(values) != len(set(values)):
                yield f"`{field}` is {', '.join(map(str, values))}; allowed: each once"
        if self.batch_size % self.parts:
            yield f"`parts` is {self.parts}; allowed: a divisor of `batch_size`, {self.batch_size}"
        if unknown := [name for name in self.columns if name not in COLUMNS]:
            yield f"`columns` has {', '.join(unknown)}; allowed: {', '.join(COLUMNS)}"
        if self.model is not None and not (self.model / "config.json").is_file():
            yield f"`model` is {self.model}, which has no config.json; name a checkpoint"
            return
        try:
            layers = self.num_layers
        except SkipDecError as error:
            yield from (f"`sizes`: {problem}" for problem in error.problems)
            return
        earlier: dict[ExitSchedule, int] = {}
        for speedup in self.rows:
            try:
                schedule = parse_schedule(f"{speedup}x", num_layers=layers, horizon=1)
            except SkipDecError as error:
                yield from (f"`speedups`: {speedup}x {problem}" for problem in error.problems)
            else:
                if (other := earlier.setdefault(schedule, speedup)) != speedup:
                    yield (
                        f"`speedups`: {speedup}x runs the layers of {other}x, of {layers}; leave "
                        "one of them out"
                    )

    @property
    def rows(self) -> tuple[int, ...]:
        """Speed-ups of the table, by layers, without 1."""
        if self.speedups is not None:
            return self.speedups
        return (2, 3, 4, 5, 6, 8) if self.num_layers >= 16 else (2, 3, 4, 5, 6)

    @property
    def num_layers(self) -> int:
        """Number of layers of the models."""
        if self.model is not None:
            return int(json.loads((self.model / "config.json").read_bytes())["num_hidden_layers"])
        return read_fresh_model(self.sizes).layers
