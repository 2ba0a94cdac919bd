"""The protocol between a running batch and the engines of a bundle, and what it passes to them.

`Stitcher` holds the engines: embedding, layers, head. `SlotStitcher` runs prompts and passes of a
running batch through them; ``host/`` has both for engines that run at once on numpy arrays,
``device/`` for engines that are enqueued on a device. Bypassing a layer is not calling it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...engines.memory import Array, Tensor
from ..kv.cache import KVCache, KVPlan
from ..kv.layout import KVLayout
from ..kv.pair import pair_bytes
from ..kv.reservation import Reservation, SlotSizes
from ..schedule import ExitSchedule, LayerPlan
from ..tokens.sampler import StepLogits

LayerCaches = Callable[[int], tuple[Tensor, Tensor]]
"""Returns the key and value [rows, N, T, W] that a layer writes."""


def do_nothing(layer: int) -> None:
    """Ignore that ``layer`` has run; the default where a callback follows each layer."""


@dataclass(frozen=True)
class PromptRow:
    """A row that begins: its number, its prompt, and the KV memory that it reserves.

    ``copies`` are the numbers of rows that continue the same prompt (its further completions).
    ``owner`` names whose prefixes the prompt may use, see `PrefixCache`.
    """

    row: int
    tokens: tuple[int, ...]
    schedule: ExitSchedule
    reservation: Reservation
    copies: tuple[int, ...] = ()
    owner: str = ""

    @property
    def rows(self) -> tuple[int, ...]:
        """The row's own number and those of its copies."""
        return (self.row, *self.copies)

    @property
    def runs_whole(self) -> bool:
        """True if every layer runs the whole prompt."""
        layers = range(len(self.reservation.capacities))
        return all(self.active_length(layer) == len(self.tokens) for layer in layers)

    def active_length(self, layer: int) -> int:
        """Return how many of the prompt's tokens, from the first on, run ``layer``."""
        return self.schedule.prompt_prefix(layer, len(self.tokens))

    def keeps(self, layer: int) -> bool:
        """Return True if the row runs ``layer`` after its prompt."""
        return self.reservation.capacities[layer] > 0


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


@dataclass(frozen=True)
class SlotLimits:
    """The limits of a running batch: rows, positions per row (prompt and text), KV memory.

    ``capacity`` is the number of positions of a slot where all slots have as many, on a device;
    ``bucket`` is that number where it is static in the engines. ``most_prompts`` and
    ``most_prompt_tokens`` (of each prompt) bound one call for prompts; None is no bound.
    """

    max_rows: int
    max_positions: int
    capacity: int
    kv_bytes: int
    bucket: int | None = None
    most_prompts: int | None = None
    most_prompt_tokens: int | None = None


@dataclass(frozen=True)
class SlotMemory:
    """Computes the KV memory that rows need in slots of these sizes; allocates nothing.

    ``bucket`` is the number of positions of a prompt's caches where it is static in the engines.
    """

    layout: KVLayout
    num_layers: int
    sizes: SlotSizes
    bucket: int | None = None

    def alone(self, row: PromptRow, *, in_chunks: bool) -> int:
        """Return the bytes that the row and its copies need if nothing else runs."""
        plan = self.chunk_plan(row) if in_chunks else self.scratch_plan([row])
        capacities = filter(None, row.reservation.capacities)
        sizes = (self.sizes.of(len(row.rows), capacity) for capacity in capacities)
        return sum(pair_bytes(self.layout, size) for size in sizes) + plan.nbytes

    def scratch_plan(self, rows: Sequence[PromptRow]) -> KVPlan:
        """Plan the one pair that the layers share which not all rows keep after their prompts."""
        layers = range(self.num_layers)
        longest = max(
            (
                max(row.active_length(layer) for row in rows)
                for layer in layers
                if not all(row.keeps(layer) for row in rows)
            ),
            default=0,
        )
        return KVPlan(
            self.layout,
            rows=len(rows),
            capacities=(0,) * len(layers),
            scratch_rows=len(rows) if longest else 0,
            scratch_capacity=(self.bucket or longest) if longest else 0,
        )

    def chunk_plan(self, row: PromptRow) -> KVPlan:
        """Plan the caches of a prompt in chunks: every layer keeps what it has seen so far."""
        return KVPlan(
            self.layout,
            rows=1,
            capacities=tuple(
                self.bucket or row.active_length(layer) for layer in range(self.num_layers)
            ),
        )


class Stitcher(ABC):
    """All engines of a bundle."""

    @abstractmethod
    def score(
        self,
        cache: KVCache,
        tokens: Sequence[int],
        active_lengths: Sequence[int],
        positions: Sequence[int],
        chunk: int,
    ) -> Iterator[Array]:
        """Teacher-force one row, each layer on the prefix of tokens that are active in it.

        The plain causal mask is exact: depth never grows along a row, so the tokens that run layer
        l are the first ``active_lengths[l]``. All layers write the cache's scratch pair of at least
        len(tokens) positions. Yields logits float32 [<= chunk, V] of ``positions``.
        """

    @abstractmethod
    def close(self) -> None:
        """Free all bindings and graphs; nothing may be run afterwards."""


class SlotStitcher(ABC):
    """Runs the engines of a bundle over rows that come and go; see `SlotCache`.

    Depth never grows along a row, so a row never again runs the layers that its plan bypasses: its
    slots in these layers are free at once, and its hidden state passes them untouched.
    """

    @abstractmethod
    def fits(self, rows: Sequence[PromptRow]) -> bool:
        """Return True if the KV memory holds these rows until they end, beside those that run."""

    @abstractmethod
    def fits_in_chunks(self, row: PromptRow) -> bool:
        """Return the same for one row whose prompt runs in chunks."""

    @abstractmethod
    def kept_tokens(self, row: PromptRow) -> int:
        """Return how many of the prompt's first tokens the prefix cache holds.

        If there are some, the prompt runs in chunks, and the first chunk begins behind them.
        """

    @abstractmethod
    def prefill(self, rows: Sequence[PromptRow]) -> Array:
        """Reserve KV memory for rows that `fits` accepted and run their prompts in one call.

        Returns logits float32 [rows, V] of each prompt's last token, newly allocated.
        """

    @abstractmethod
    def begin_chunks(self, row: PromptRow) -> int:
        """Reserve KV memory for a row that `fits_in_chunks` accepted; `chunk` runs its prompt.

        Returns how many of the prompt's first tokens need not run.
        """

    @abstractmethod
    def chunk(self, stop: int) -> Array | None:
        """Run the begun prompt up to token ``stop``.

        Returns logits float32 [1, V] at the prompt's end, None before.
        """

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
        """Evict prefixes until ``nbytes`` of KV memory are free, or no prefix is left."""

    @abstractmethod
    def release(self, row: int) -> None:
        """Free the slots of a row that has ended, or whose prompt is given up."""

    @abstractmethod
    def reset(self) -> None:
        """Free all rows after a failure: their keys and values may be wrong."""

    @property
    @abstractmethod
    def limits(self) -> SlotLimits:
        """The limits of rows, positions and KV memory."""

    @property
    @abstractmethod
    def memory(self) -> SlotMemory:
        """Computes the KV memory that rows need."""

    @property
    @abstractmethod
    def reserved_bytes(self) -> int:
        """Bytes of KV memory that rows and prompts in progress hold."""

    @property
    @abstractmethod
    def prefix_bytes(self) -> int:
        """Bytes of KV memory that the prefix cache holds, beside those reserved."""

    @property
    @abstractmethod
    def planned_bytes(self) -> int:
        """The largest number of bytes that was planned to be in use at once."""

    @abstractmethod
    def close(self) -> None:
        """Free all bindings and slots."""
