"""The models of a reproduction: each one's base, and the table cells that it fills."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reproduction.columns import COLUMNS, Depth, skipdecode
from reproduction.config import CONTROL, MIXTURE, UNTUNED, ReproductionConfig
from skipdec.calib.data.data import DataConfig
from skipdec.calib.tuning.config import TuneConfig
from skipdec.engines.manifest import FloatType
from skipdec.runtime.schedule.text import parse_schedule


@dataclass(frozen=True, order=True)
class Cell:
    """A place in the table: ``Cell("skipdecode", 2)``."""

    column: str
    speedup: int


@dataclass(frozen=True)
class Run:
    """One model: its tuning, its directory, and the cells that it fills.

    Its bundle contains the schedule of those cells. Cells share a run if they run the same layers:
    SkipDecode and unified at 6× on 12 layers both run layers 0 and 11.
    """

    seed: int
    name: str
    cells: tuple[Cell, ...]
    tuning: TuneConfig
    dtype: FloatType

    @property
    def checkpoint(self) -> Path:
        """Directory of the tuned Hugging Face checkpoint."""
        return self.tuning.output

    @property
    def bundle(self) -> Path:
        """Directory of its export in ``dtype``."""
        return self.checkpoint.with_name(f"{self.name}.bundle")


def base_run(config: ReproductionConfig, seed: int) -> Run:
    """Return the new or pretrained model of ``seed``, trained at full depth."""
    if config.model is None:
        start: dict[str, Any] = {"from_scratch": config.sizes, "vocab_size": config.vocab_size}
    else:
        start = {"model": str(config.model)}
    tuning = TuneConfig(
        **_common(config, seed, "base"),
        **start,
        schedule="full",
        validation=e2e_data(config, config.dev),
        learning_rate=config.base_learning_rate,
        epochs=config.base_epochs,
    )
    cells = (Cell(UNTUNED, 1), *(Cell(UNTUNED, speedup) for speedup in config.rows))
    return Run(seed, "base", cells, tuning, config.dtype)


def tuned_runs(config: ReproductionConfig, seed: int, horizon: int) -> list[Run]:
    """Return the control at full depth, then every column at every speed-up, row by row.

    A column's cell at 1× is the control. ``horizon`` is the median completion of the training data
    in tokens of the base's tokenizer.
    """
    runs: dict[Hashable, Run] = {}

    def add(cell: Cell, name: str, text: str) -> None:
        schedule = parse_schedule(text, num_layers=config.num_layers, horizon=horizon)
        key = tuple(schedule.plan(index) for index in range(horizon + 1))
        if key in runs:
            runs[key] = replace(runs[key], cells=(*runs[key].cells, cell))
        else:
            tuning = _tuning(config, seed, name, text)
            runs[key] = Run(seed, name, (cell,), tuning, config.dtype)

    add(Cell(CONTROL, 1), "control", "full")
    for name in config.columns:
        add(Cell(name, 1), "control", "full")
    for speedup in config.rows:
        depth = Depth(speedup, config.num_layers, horizon)
        for name in config.columns:
            if (text := COLUMNS[name].schedule(depth)) is not None:
                add(Cell(name, speedup), f"{name}-{speedup}x", text)
    if config.mixture:
        *others, target = (
            skipdecode(Depth(each, config.num_layers, horizon)) for each in config.rows
        )
        cells = tuple(Cell(MIXTURE, speedup) for speedup in (1, *config.rows))
        name = "-".join((MIXTURE, *map(str, config.rows)))
        tuning = _tuning(config, seed, name, target, tuple(others) or (target,))
        runs[MIXTURE] = Run(seed, name, cells, tuning, config.dtype)
    return list(runs.values())


def _tuning(
    config: ReproductionConfig, seed: int, name: str, schedule: str, mixture: tuple[str, ...] = ()
) -> TuneConfig:
    values = {
        **_common(config, seed, name),
        "model": str(base_run(config, seed).checkpoint),
        "schedule": schedule,
        "mixture": mixture,
        "distill": config.distill,
        "learning_rate": config.tuning_learning_rate,
        "max_steps": config.tuning_steps,
    }
    return TuneConfig(**values)


def _common(config: ReproductionConfig, seed: int, name: str) -> dict[str, Any]:
    return {
        "data": e2e_data(config, config.train),
        "output": config.work / f"seed-{seed}" / name,
        "max_length": config.max_length,
        "batch_size": config.batch_size // config.parts,
        "gradient_accumulation": config.parts,
        "bf16": config.bf16,
        "seed": seed,
    }


def e2e_data(config: ReproductionConfig, path: Path) -> DataConfig:
    """Return ``path`` as a CSV file with the columns of E2E."""
    return DataConfig(path=path, preset="e2e", prompt_template=config.prompt_template)
