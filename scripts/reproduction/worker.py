"""Make one model of a reproduction in its own process: tune, then export it."""

from __future__ import annotations

import os
import shutil
import threading
from multiprocessing import parent_process
from time import perf_counter

from reproduction.runs import Run
from skipdec.calib.tuning.config import TuneConfig
from skipdec.calib.tuning.report import TuningReport
from skipdec.calib.tuning.work import FREE_OPTIONS, REPORT_NAME, TuningDirectories
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.bundle.place import MANIFEST_NAME
from skipdec.engines.errors import UsageError
from skipdec.exporter.config import ExportConfig


def prepare_process() -> None:
    """Prepare the process for its runs: silence its output, and end it with its parent."""
    from transformers.utils import logging

    threading.Thread(target=_end_with_parent, daemon=True).start()
    logging.set_verbosity_error()
    logging.disable_progress_bar()


def _end_with_parent() -> None:
    """Exit with the parent, because a killed script would otherwise leave trainings running."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def make(run: Run, threads: int) -> float:
    """Tune and export the missing parts of ``run`` on ``threads`` cores; return its seconds.

    An interrupted tuning continues from its last save. Raises UsageError if the checkpoint was
    made with other options, and what ``tune`` and ``export`` raise.
    """
    import torch

    torch.set_num_threads(threads)
    begin = perf_counter()
    tuned = _is_tuned(run)
    if not tuned:
        shutil.rmtree(run.bundle, ignore_errors=True)  # its checkpoint is missing
        _tune(run)
    if not tuned or not _is_exported(run):
        from skipdec.exporter.pipeline.exporting import export

        export(
            ExportConfig(model=str(run.checkpoint), output=run.bundle, dtype=run.dtype, force=True)
        )
    return perf_counter() - begin


def is_made(run: Run) -> bool:
    """Return True if checkpoint and bundle exist. Raises UsageError if other options made them."""
    return _is_tuned(run) and _is_exported(run)


def _is_exported(run: Run) -> bool:
    if not (run.bundle / MANIFEST_NAME).is_file():
        return False
    return EngineBundle.open(run.bundle).manifest.precision.dtype == run.dtype


def _is_tuned(run: Run) -> bool:
    path = run.checkpoint / REPORT_NAME
    if not path.is_file():
        return False
    made = TuningReport.model_validate_json(path.read_bytes()).config
    before, now = _fixed_options(TuneConfig(**made)), _fixed_options(run.tuning)
    problems = [
        f"was made with {name} {before[name]!r}, now it is {now[name]!r}; take that value, or "
        "another work directory"
        for name in now
        if before[name] != now[name]
    ]
    if problems:
        raise UsageError(str(run.checkpoint), *problems)
    return True


def _fixed_options(config: TuneConfig) -> dict[str, object]:
    return config.model_dump(mode="json", exclude=FREE_OPTIONS)


def _tune(run: Run) -> None:
    from skipdec.calib.tuning.tuning import tune

    unfinished = TuningDirectories(run.checkpoint).last_save() is not None
    tune(run.tuning.model_copy(update={"resume": unfinished}))
