"""The engines of a bundle as a running batch sees them, and what it passes to them.

`Stitcher` holds the engines: embedding, layers, head. `SlotStitcher` runs prompts and passes of a
running batch through them; ``host/`` has both for engines that run at once on numpy arrays,
``device/`` for engines that are enqueued on a device. Bypassing a layer is not calling it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Self

from ...engines.backends.session import Binding, EngineSession
from ...engines.manifest import TensorRole
from ...engines.memory import Array, Buffer, Tensor
from ..kv.buffers import KVLayout, pair_bytes
from ..kv.cache import Capacities, KVCache, KVPlan, SlotSizes, plan_kv_cache
from ..schedule import ExitSchedule, LayerPlan
from ..tokens.drawing import TokenDraw
from ..tokens.logits import StepLogits
from .drafts import DraftEngines

LayerCaches = Callable[[int], tuple[Tensor, Tensor]]
"""Returns the key and value [rows, N, T, W] that a layer writes."""


@dataclass(frozen=True)
class PromptRow:
    """A row that begins: its number, its prompt, and the KV positions that it reserves per layer.

    ``copies`` are the numbers of rows that continue the same prompt (its further completions).
    ``owner`` names whose prefixes the prompt may use, see `PrefixCache`.
    """

    row: int
    tokens: tuple[int, ...]
    schedule: ExitSchedule
    capacities: Capacities
    copies: tuple[int, ...] = ()
    owner: str = ""

    @classmethod
    def of(
        cls,
        tokens: tuple[int, ...],
        schedule: ExitSchedule,
        max_tokens: int,
        layout: KVLayout,
        *,
        rows: range,
        owner: str = "",
        has_draft_layer: bool = False,
    ) -> Self:
        """Make the rows that continue a prompt by up to ``max_tokens`` tokens each.

        A draft layer holds the positions of all of these tokens but the last.
        """
        plan = plan_kv_cache(layout, schedule, [len(tokens)], [max_tokens], scratch_rows=1)
        capacities = plan.capacities
        if has_draft_layer:
            capacities += (len(tokens) + max_tokens - 1 if max_tokens > 1 else 0,)
        return cls(rows[0], tokens, schedule, capacities, tuple(rows[1:]), owner)

    @property
    def rows(self) -> tuple[int, ...]:
        """The row's own number and those of its copies."""
        return (self.row, *self.copies)

    @property
    def runs_whole(self) -> bool:
        """True if every layer runs the whole prompt."""
        layers = range(self.schedule.num_layers)
        return all(self.active_length(layer) == len(self.tokens) for layer in layers)

    def active_length(self, layer: int) -> int:
        """Return how many of the prompt's tokens, from the first on, run ``layer``."""
        return self.schedule.prompt_prefix(layer, len(self.tokens))

    def keeps(self, layer: int) -> bool:
        """Return True if the row runs ``layer`` after its prompt."""
        return self.capacities[layer] > 0


class StepRow(NamedTuple):
    """The tokens that a row feeds in one pass, one or several, each with the layers that it runs.

    ``tokens[i]`` takes position ``position + i`` and runs ``plans[i]``, which names no layer that
    ``plans[i - 1]`` bypasses. Where the only token is not known yet, ``draw`` says how it is drawn,
    None that it is the most probable one.
    """

    row: int
    tokens: tuple[int, ...]
    position: int
    plans: tuple[LayerPlan, ...]
    draw: TokenDraw | None = None

    @property
    def plan(self) -> LayerPlan:
        """The layers of the first token; later tokens run these or fewer."""
        return self.plans[0]


def active_counts(row: StepRow, num_layers: int) -> list[int]:
    """Return how many of the row's tokens, from the first on, run each layer."""
    counts = [0] * num_layers
    if row.plans[0] is row.plans[-1]:  # the common case: plans only shrink
        for layer in row.plan:
            counts[layer] = len(row.plans)
        return counts
    for plan in row.plans:
        for layer in plan:
            counts[layer] += 1
    return counts


def feeding_problem(row: StepRow, reserved: Callable[[int], int]) -> str | None:
    """Return why the row's tokens cannot be fed in one pass, or None if they can.

    ``reserved(layer)``: the positions that the row has reserved in a layer.
    """
    if not row.tokens or len(row.tokens) != len(row.plans):
        return f"feeds {len(row.tokens)} tokens with {len(row.plans)} plans; each has one"
    for before, after in pairwise(row.plans):
        if before is not after and not set(after).issubset(before):
            return "feeds a token to a layer that the token before it bypasses"
    for index, plan in enumerate(row.plans):
        if index + 1 < len(row.plans) and row.plans[index + 1] is plan:
            continue  # the last token of a plan reaches furthest
        held = min(map(reserved, plan), default=0)
        if row.position + index >= held:
            return (
                f"feeds a token at position {row.position + index}; "
                f"a layer of its plan holds {held} positions of the row"
            )
    return None


class DraftRow(NamedTuple):
    """One token that a row feeds in a draft step, at ``position``."""

    row: int
    token: int
    position: int


@dataclass(frozen=True)
class SlotLimits:
    """The limits of a running batch: rows, positions per row (prompt and text), KV memory.

    ``capacity`` is the number of positions of a slot where all slots have as many, on a device;
    where rows feed several tokens it has room for padding besides. ``bucket`` is that number where
    it is static in the engines. ``most_prompts`` and ``most_prompt_tokens`` (of each prompt) bound
    one call for prompts; None is no bound.
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
    With ``has_draft_layer`` rows have one more capacity, that of the draft layer.
    """

    layout: KVLayout
    num_layers: int
    sizes: SlotSizes
    bucket: int | None = None
    has_draft_layer: bool = False

    def alone(self, row: PromptRow, *, in_chunks: bool) -> int:
        """Return the bytes that the row and its copies need if nothing else runs."""
        plan = self.chunk_plan(row) if in_chunks else self.scratch_plan([row])
        capacities = filter(None, row.capacities)
        sizes = (self.sizes.of(len(row.rows), capacity) for capacity in capacities)
        return sum(pair_bytes(self.layout, size) for size in sizes) + plan.nbytes

    def scratch_plan(self, rows: Sequence[PromptRow]) -> KVPlan:
        """Plan the one pair that the layers share which not all rows keep after their prompts."""
        layers = range(self.num_layers)
        # A scheduler plans ever larger groups, mostly of rows that are alike.
        kinds = {(id(row.schedule), len(row.tokens), row.capacities): row for row in rows}.values()
        longest = max(
            (
                max(row.active_length(layer) for row in kinds)
                for layer in layers
                if not all(row.keeps(layer) for row in kinds)
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
    """All engines of a bundle; runs prompts and scored texts, whose logits are float32.

    The plain causal mask is exact everywhere: depth never grows along a row, so the tokens that run
    layer l are the first ``active_lengths[l]``. ``bucket`` is the number of positions of the caches
    where it is static in the engines. ``drafts`` are the bundle's engines for drafts, loaded once
    they are used; None: it has none.
    """

    drafts: DraftEngines | None = None

    def load_drafts(self, *, layer: bool) -> None:
        """Load the bundle's narrow head, and its draft layer if ``layer``, where it has them."""
        if self.drafts is not None:
            _ = layer and self.drafts.layer, self.drafts.head  # loaded on first use

    @abstractmethod
    def prefill(
        self,
        prompts: Sequence[Sequence[int]],
        active_lengths: Sequence[Sequence[int]],
        bucket: int | None,
        caches: LayerCaches,
        after: Callable[[int], None],
    ) -> StepLogits:
        """Run prompts into empty caches, of row r ``active_lengths[l][r]`` tokens in layer l.

        A layer writes to ``caches(layer)``; ``after(layer)`` is called when it has. Returns the
        logits of each prompt's last token, valid until the next call.
        """

    @abstractmethod
    def chunk(
        self,
        tokens: Sequence[int],
        start: int,
        active_lengths: Sequence[int],
        bucket: int | None,
        caches: LayerCaches,
        *,
        is_last: bool,
    ) -> StepLogits | None:
        """Run ``tokens`` of one prompt, from position ``start`` on, on its caches.

        Layer l runs the prompt's first ``active_lengths[l]`` tokens. With int8 products the bits
        are those of the whole prompt at once. Returns the logits of the last token, valid until
        the next call, if this is the prompt's last chunk.
        """

    @abstractmethod
    def follow(
        self,
        tokens: Sequence[int],
        start: int,
        layers: Iterable[int],
        bucket: int | None,
        caches: LayerCaches,
    ) -> None:
        """Run one row's tokens from position ``start`` on through ``layers``, for their caches.

        The bundle's draft layer has the number behind the model's last layer.
        """

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

        All layers write the cache's scratch pair of at least len(tokens) positions. Yields logits
        [<= chunk, V] of ``positions``.
        """

    def forget(self, memory: Buffer) -> None:  # noqa: B027  (devices hold addresses)
        """Drop all references to a buffer that is about to be freed, and that no call uses."""

    def trim(self) -> None:  # noqa: B027  (devices keep no such memory)
        """Free memory that is kept for later passes; no slots may be open."""

    @abstractmethod
    def close(self) -> None:
        """Free all bindings and graphs; nothing may be run afterwards."""


def bind(session: EngineSession, tensors: Mapping[TensorRole, Tensor]) -> Binding:
    """Bind those of ``tensors`` whose roles the engine has."""
    wanted = session.roles
    return session.bind({role: tensor for role, tensor in tensors.items() if role in wanted})


def run_once(session: EngineSession, tensors: Mapping[TensorRole, Tensor]) -> None:
    """Bind those of ``tensors`` whose roles the engine has, run it once and release them."""
    binding = bind(session, tensors)
    binding.run()
    binding.release()


def cache_tensors(key: Tensor, value: Tensor) -> dict[TensorRole, Tensor]:
    """Return one buffer as past and present, so that the engine appends in place."""
    return {
        TensorRole.PAST_KEY: key,
        TensorRole.PRESENT_KEY: key,
        TensorRole.PAST_VALUE: value,
        TensorRole.PRESENT_VALUE: value,
    }
