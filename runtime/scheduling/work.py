"""What an engine lets its engines do, a call each, counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TypeVar

from ...engines.memory import Array
from ..stitching.prompt_rows import PromptRow
from ..stitching.slots import StepRow
from ..tokens.logits import StepLogits
from .parts import EngineParts
from .stats import Counters

T = TypeVar("T")


class Work:
    """Calls of the slot stitcher, each whole while nothing is freed; see `LoadedEngines.run`.

    Raises what that and the engines raise.
    """

    def __init__(self, parts: EngineParts, counters: Counters) -> None:
        self._engines = parts.engines
        self._slots = parts.slots
        self._counters = counters

    def prefill(self, prompts: Sequence[PromptRow]) -> Array:
        """Run prompts together; logits float32 [prompts, V], newly allocated."""
        start = perf_counter()
        logits = self._run(lambda: self._slots.prefill(prompts))
        self._counters.count_prefill(perf_counter() - start)
        return logits

    def begin_chunks(self, prompt: PromptRow) -> None:
        """Let ``prompt`` be what `chunk` runs."""
        self._counters.prefix_tokens += self._run(lambda: self._slots.begin_chunks(prompt))

    def chunk(self, stop: int) -> Array | None:
        """Run the begun prompt up to token ``stop``; logits float32 [1, V] if that is its end."""
        start = perf_counter()
        logits = self._run(lambda: self._slots.chunk(stop))
        self._counters.count_prefill(perf_counter() - start)
        return logits

    def step(self, rows: Sequence[StepRow]) -> StepLogits:
        """Run a step of all rows; logits in their order, valid until the next call."""
        start = perf_counter()
        logits = self._run(lambda: self._slots.step(rows))
        self._counters.count_step([row.plan for row in rows], perf_counter() - start)
        return logits

    def _run(self, call: Callable[[], T]) -> T:
        return self._engines.run(lambda _: call())
