"""The directory that an evaluation leaves: written beside its place, then renamed."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..engines.bundle.place import partial_path, remove_tree, take_place
from ..engines.errors import UsageError
from .evaluation import Evaluation
from .evaluation_markdown import report_markdown
from .pareto_plot import plot_pareto
from .positions_plot import plot_positions

DOCUMENT, REPORT, PICTURE = "evaluation.json", "evaluation.md", "pareto.png"
POSITIONS_PICTURE = "positions.png"
_FILES = {DOCUMENT, REPORT, PICTURE, POSITIONS_PICTURE}


def check_output(directory: Path, *, force: bool) -> None:
    """Raise UsageError unless ``directory`` may be written: new, or with ``force`` an old result.

    A directory that holds anything else is never replaced.
    """
    if not directory.parent.is_dir():
        raise UsageError(f"--output {directory}", f"{directory.parent} is no directory; make it")
    if not directory.exists():
        return
    if not directory.is_dir():
        raise UsageError(f"--output {directory}", "is a file; name a directory")
    if not force:
        raise UsageError(f"--output {directory}", "exists; --force replaces it, or name another")
    foreign = sorted({entry.name for entry in directory.iterdir()} - _FILES)
    if foreign:
        raise UsageError(
            f"--output {directory}",
            f"holds {', '.join(foreign[:5])}, not a result of skipdec evaluate; name another",
        )


def pictures(evaluation: Evaluation) -> tuple[str, ...]:
    """Names of what there is to draw: quality over speed, where texts were written; positions."""
    names = [] if evaluation.config.score_only else [PICTURE]
    return (*names, *([POSITIONS_PICTURE] if evaluation.config.by_position else []))


def write_evaluation(
    directory: Path, evaluation: Evaluation, document: dict[str, Any], *, force: bool
) -> tuple[str, ...]:
    """Write evaluation.json, evaluation.md and, with matplotlib, the ``pictures``.

    Returns the names of the files. What is at ``directory`` is replaced in one step, and only by
    a whole result. Raises UsageError as ``check_output`` does.
    """
    check_output(directory, force=force)
    target = directory.resolve()
    partial = partial_path(target)
    remove_tree(partial)
    partial.mkdir()
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    (partial / DOCUMENT).write_text(text, encoding="utf-8")
    (partial / REPORT).write_text(report_markdown(evaluation), encoding="utf-8")
    if find_spec("matplotlib") is not None:
        if PICTURE in pictures(evaluation):
            plot_pareto(evaluation, partial / PICTURE)
        if POSITIONS_PICTURE in pictures(evaluation):
            plot_positions(evaluation, partial / POSITIONS_PICTURE)
    names = tuple(sorted(path.name for path in partial.iterdir()))
    take_place(partial, target)
    return names
