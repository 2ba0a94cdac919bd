"""Steps over rows at depths of their own: a layer runs on exactly the rows whose plan holds it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from ...engines.memory import Array
from ..schedule import LayerPlan
from ..tokens.logits import StepLogits
from .prompt_rows import PromptRow
from .slot_limits import SlotLimits
from .slot_memory import SlotMemory


class StepRow(NamedTuple):
    """A row that goes on: ``token`` stands at ``position`` and runs the layers of ``plan``."""

    row: int
    token: int
    position: int
    plan: LayerPlan


class SlotStitcher(ABC):
    """The engines of a bundle over rows that come and go; see `SlotCache`.

    Depth never grows along a row, so what a row's plan bypasses it never runs again: its slots in
    these layers go to others at once, and its hidden state passes them untouched.
    """

    @abstractmethod
    def fits(self, rows: Sequence[PromptRow]) -> bool:
        """Whether there is KV memory for these rows, beside those that run, until their ends."""

    @abstractmethod
    def fits_in_chunks(self, row: PromptRow) -> bool:
        """The same for one row whose prompt runs in chunks."""

    @abstractmethod
    def kept_tokens(self, row: PromptRow) -> int:
        """Tokens at the row's beginning that need not run, since a prompt before began so.

        If there are some, the row's prompt runs in chunks, and the first of them begins there.
        """

    @abstractmethod
    def prefill(self, rows: Sequence[PromptRow]) -> Array:
        """Reserve for rows that `fits` said yes to and run their prompts, together.

        Returns logits float32 [rows, V] of each prompt's last token, newly allocated.
        """

    @abstractmethod
    def begin_chunks(self, row: PromptRow) -> int:
        """Reserve for a row that `fits_in_chunks` said yes to, whose prompt `chunk` will run.

        Returns how many of its first tokens need not run.
        """

    @abstractmethod
    def chunk(self, stop: int) -> Array | None:
        """Run the begun prompt up to token ``stop``; logits float32 [1, V] if that is its end."""

    @abstractmethod
    def step(self, rows: Sequence[StepRow]) -> StepLogits:
        """Run one step of all rows; logits in their order, valid until the next call."""

    @abstractmethod
    def give_up_prefixes(self, nbytes: int) -> None:
        """Drop kept beginnings of prompts until ``nbytes`` of KV memory are free, or all are."""

    @abstractmethod
    def release(self, row: int) -> None:
        """Free what a row holds; it has ended, or its prompt is given up."""

    @abstractmethod
    def reset(self) -> None:
        """Free all rows: what they hold may be wrong."""

    @property
    @abstractmethod
    def limits(self) -> SlotLimits:
        """What the slots hold at most."""

    @property
    @abstractmethod
    def memory(self) -> SlotMemory:
        """What rows need of KV memory."""

    @property
    @abstractmethod
    def reserved_bytes(self) -> int:
        """Bytes of KV memory that rows and prompts have."""

    @property
    @abstractmethod
    def prefix_bytes(self) -> int:
        """Bytes of KV memory that hold beginnings of prompts; those reserved are others."""

    @property
    @abstractmethod
    def planned_bytes(self) -> int:
        """Most that was planned to be in use at once, before it was."""

    @abstractmethod
    def close(self) -> None:
        """Free all bindings and slots."""
