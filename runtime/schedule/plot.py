"""A picture of a schedule: which layers run at which generated token."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill

import numpy as np

from ...engines.checking import as_path
from ...engines.errors import UsageError, counted
from ...engines.host.installation import require_extra
from .pictures import FORMATS, WIDTH, picture_style, save_picture
from .schedule import ExitSchedule
from .text import format_schedule

_PROMPT, _WARMUP, _RUN = 1, 2, 3  # what a cell shows; 0: bypassed
_COLOURS = ("#ffffff", "#c9ced6", "#f2a65a", "#3b6ea5")
_MAX_CELLS = 1 << 26  # of a picture; a cell takes a byte, and several while it is drawn
_TITLE_COLUMNS = 80  # characters that fit the width of a picture
_LABELS = ("bypassed", "prompt", "warm-up", "runs")


def plot_schedule(
    schedule: ExitSchedule, path: str | Path, *, num_tokens: int | None = None
) -> None:
    """Draw layers × positions to ``path``, PNG or SVG by its ending.

    Columns are the prompt (one for each of its budgets), then generated tokens 0 … ``num_tokens``
    − 1 (default: the horizon and a tenth more). Equal schedules give equal bytes.

    Raises UsageError for another ending, a missing folder or more tokens than can be drawn,
    ScheduleError for anything but a schedule, and MissingExtraError without matplotlib.
    """
    path, text = as_path(path), format_schedule(schedule)
    if path.suffix.lower() not in FORMATS:
        allowed = ", ".join(FORMATS)
        raise UsageError(f"picture {path}", f"ends in {path.suffix!r}; allowed: {allowed}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"picture {path}", f"{path.absolute().parent} is not a directory; make it")
    require_extra("plot", "skipdec schedule plot")
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    default = schedule.horizon + max(1, schedule.horizon // 10)
    count, most = default if num_tokens is None else num_tokens, _MAX_CELLS // schedule.num_layers
    if not 1 <= count <= most:
        raise UsageError(
            f"picture {path}",
            f"has {count:,} tokens of {schedule.num_layers:,} layers; allowed: 1 to {most:,} "
            "tokens; draw so many, or give a shorter horizon",
        )
    cells = schedule_cells(schedule, count)  # [L, prompt + count]
    prompt = len(schedule.prompt_plans)
    with picture_style():
        figure = Figure(figsize=(WIDTH, 4), layout="constrained")
        axes = figure.subplots()
        axes.imshow(
            cells,
            origin="lower",
            aspect="auto",
            interpolation="nearest",
            cmap=ListedColormap(_COLOURS),
            vmin=0,
            vmax=len(_COLOURS) - 1,
            extent=(-prompt - 0.5, count - 0.5, -0.5, schedule.num_layers - 0.5),
        )
        mean = schedule.average_budget()
        axes.set_title(
            f"{fill(text, _TITLE_COLUMNS)}\n"
            f"mean {mean:.2f} of {schedule.num_layers} layers over "
            f"{counted(schedule.horizon, 'token')}"
        )
        axes.set_xlabel("generated token (left of 0: the prompt)")
        axes.set_ylabel("layer")
        axes.legend(
            handles=[
                Patch(facecolor=colour, edgecolor="#888888", label=label)
                for colour, label in zip(_COLOURS, _LABELS, strict=True)
            ],
            loc="upper center",
            bbox_to_anchor=(0.5, -0.14),
            ncols=len(_LABELS),
        )
        save_picture(figure, path)


def schedule_cells(schedule: ExitSchedule, num_tokens: int) -> np.ndarray:
    """Return the cells of the picture, uint8 [num_layers, P + num_tokens].

    The first P columns are the prompt: one, or with ``prompt="decay"`` one for each budget.
    """
    prompt = len(schedule.prompt_plans)
    cells = np.zeros((schedule.num_layers, prompt + num_tokens), np.uint8)
    for column, plan in enumerate(schedule.prompt_plans):
        cells[list(plan.layers), column] = _PROMPT
    for column in range(prompt, prompt + num_tokens):
        layers = list(schedule.plan(column - prompt).layers)
        cells[layers, column] = _RUN
        warmup = [layer for layer in layers if layer < schedule.warmup_layers]
        cells[warmup, column] = _WARMUP
    return cells
