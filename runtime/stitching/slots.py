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
    """The tokens that a row feeds in one pass, one or several, each with the layers that it runs.

    ``tokens[i]`` takes position ``position + i`` and runs ``plans[i]``, which names no layer that
    ``plans[i - 1]`` bypasses.
    """

    row: int
    tokens: tuple[int, ...]
    position: int
    plans: tuple[LayerPlan, ...]

    @property
    def plan(self) -> LayerPlan:
        """The layers of the first token; later tokens run these or fewer."""
        return self.plans[0]


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
        """Run one pass of all rows that run, each over the tokens that it feeds.

        A layer runs on exactly the tokens whose plan names it, and a token attends to all before
        it. Returns the logits of every token, row after row in the given order, valid until the
        next call. With several tokens in a row, results have the bits of one token at a time
        where products are int8 or int4 on skipdec's kernels.

        Raises UsageError, before anything has changed, for tokens that cannot be fed, and where
        the engines take one token per row only.
        """

    @abstractmethod
    def truncate(self, row: int, length: int) -> None:
        """Roll a row back to its first ``length`` positions; later ones are fed again.

        It goes back to the position where the row last left a layer at most, since that layer's
        keys and values are gone: ``length`` may always be the first position of the last pass.
        Raises UsageError for any other length.
        """

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
