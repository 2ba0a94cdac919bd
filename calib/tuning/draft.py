"""The layers that a draft runs, and the spans in which drafts are trained."""

from __future__ import annotations

import random
from dataclasses import dataclass

from ...engines.errors import UsageError, shown
from ...runtime.drafting.config import DraftConfig, parse_draft
from ...runtime.drafting.layers import depth_problem, draft_plan

SPAN = 6  # most positions of a span in training; its size when measuring acceptance


def layers_run(text: str, num_layers: int) -> tuple[int, ...]:
    """Return the layers of the draft ``text``, ascending, for a model of ``num_layers``.

    >>> layers_run("ends:3", 12), layers_run("first:3", 12)
    ((0, 10, 11), (0, 1, 2))

    Raises UsageError if the text is not a draft of layers alone, or does not run fewer layers than
    the model has.
    """
    config = parse_draft(text)
    part = None if config is None else config.parts[0]
    if part is None or part.number is None or config != DraftConfig((part,)):
        raise UsageError(
            "draft", f"is {shown(text)}; allowed: ends:N or first:N alone, e.g. ends:3"
        )
    if (problem := depth_problem(part, num_layers)) is not None:
        raise UsageError("draft", problem)
    return draft_plan(part, num_layers).layers


def layers_read(num_layers: int) -> tuple[int, ...]:
    """Return after how many layers a draft layer reads states, ascending.

    >>> layers_read(30), layers_read(4), layers_read(1)
    ((2, 15, 30), (2, 2, 4), (1, 1, 1))
    """
    return tuple(sorted((min(2, num_layers), max(1, num_layers // 2), num_layers)))


@dataclass(frozen=True)
class DraftSpans:
    """A division of each row's positions into spans of drafts.

    The first span begins ``offset`` positions after the first completion token (before it if
    negative); each span has ``size`` positions. The draft at a position runs only ``layers``. It
    attends to full depth's keys before its span and to drafts' keys inside it.
    """

    layers: tuple[int, ...]
    size: int = SPAN
    offset: int = 0

    @property
    def num_shared(self) -> int:
        """Number of lowest layers that drafts also run, so that they share full depth's states."""
        return next(
            (index for index, layer in enumerate(self.layers) if index != layer), len(self.layers)
        )


def step_spans(layers: tuple[int, ...], step: int, seed: int) -> DraftSpans:
    """Return the spans of an optimizer step: 1 to 6 positions each, at any offset.

    They depend on seed and step alone, so that resumed runs and all processes agree.
    """
    drawn = random.Random(f"{seed}:windows:{step}")
    size = drawn.randint(1, SPAN)
    return DraftSpans(layers, size, -drawn.randrange(size))
