"""SlotStitcher: runs prompts and passes of the rows of a running batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...engines.constants import integer
from ...engines.errors import UsageError
from ...engines.memory import Tensor
from ..kv.buffers import BufferPool
from ..kv.cache import KVCache, SlotCache
from ..kv.plans import KVPlan, PromptRow
from ..kv.prefixes import BLOCK_TOKENS, PrefixCache, Recording, restore
from ..schedule import LayerPlan
from ..tokens.logits import StepLogits
from .protocol import DraftRow, StepRow, Stitcher, feeding_problem
from .states import HeldStates

_PREFIX_SHARE = integer("prefix_share")  # prefixes take at most a quarter of the KV memory

# A prompt with a cached prefix runs alone and so reads all weights alone, which costs as much as 12
# tokens of OPT-1.3b in int8 on two cores.
_MIN_KEPT_TOKENS = integer("min_kept_tokens")


class SlotStitcher(ABC):
    """Reserves KV memory for rows, runs their prompts and passes, and lets them leave layers.

    Depth never grows along a row, so a row never again runs the layers that its plan bypasses: its
    slots in these layers are freed at once, and its hidden state passes them unchanged. Subclasses
    run the engines; `SlotCache` holds keys and values.
    """

    runs_ahead = False
    """True if `step` begins the next pass ahead, so that the host's work costs no time."""

    has_run_ahead = False
    """True if the last pass had begun before it was requested."""

    has_found_route = False
    """True if the last pass or draft step had to find or bind its calls, so it took longer."""

    def __init__(
        self, cache: SlotCache, pool: BufferPool, prefixes: PrefixCache | None = None
    ) -> None:
        """Take ownership of ``prefixes``."""
        self._cache = cache
        self._pool = pool
        self.memory = cache.memory
        self.limits = cache.memory.limits
        self._num_layers = cache.memory.num_layers
        self._bucket = self.limits.bucket
        self._prefixes = prefixes
        self._plans: dict[int, LayerPlan] = {}  # row -> plan of the first token of its last step
        self._floors: dict[int, int] = {}  # row -> the position at which it last left layers
        self._chunked: _ChunkedPrompt | None = None
        self._held: HeldStates[Any] = HeldStates(cache)  # empty without a draft layer

    @property
    def reserved_bytes(self) -> int:
        """Bytes of KV memory that rows and prompts in progress hold."""
        return self._pool.in_use_bytes - self._cache.idle_bytes - self.prefix_bytes

    @property
    def prefix_bytes(self) -> int:
        """Bytes of KV memory that the prefix cache holds, in addition to those reserved."""
        return 0 if self._prefixes is None else self._prefixes.nbytes

    @property
    def planned_bytes(self) -> int:
        """The maximum number of bytes planned to be in use at once."""
        return self._cache.planned_bytes

    @property
    def num_rows(self) -> int:
        """The number of running rows."""
        return self._cache.num_rows

    def fits(self, rows: Sequence[PromptRow]) -> bool:
        """Return True if the KV memory holds these rows to their ends with those that run."""
        most = self.limits.prefill_rows
        if most is not None and len(rows) > most:
            return False
        return self._fits(rows, self.memory.scratch_plan(rows))

    def fits_in_chunks(self, row: PromptRow) -> bool:
        """Return `fits` for one row whose prompt runs in chunks."""
        return self._fits([row], self.memory.chunk_plan(row))

    def keeps_prefix(self, row: PromptRow) -> bool:
        """Return True if so much of the prompt is cached that the rest runs in chunks."""
        if self._prefixes is None or not row.runs_whole:
            return False
        kept = len(self._prefixes.find(row.tokens, row.owner)) * BLOCK_TOKENS
        if kept < _MIN_KEPT_TOKENS:
            return False
        return self.memory.alone(row, in_chunks=True) <= self._cache.limit  # else it never fits

    def prefill(self, rows: Sequence[PromptRow]) -> StepLogits:
        """Reserve KV memory for rows that `fits` accepted and run their prompts in one call.

        A layer that all rows keep writes to their slots. Any other layer writes to a scratch pair,
        from which the rows that keep it are copied. Returns the logits of each prompt's last token,
        valid until the next call.
        """
        plan = self.memory.scratch_plan(rows)
        self._reserve(rows, plan)
        layers, numbers = range(self._num_layers), [row.row for row in rows]
        active = [[row.active_length(layer) for row in rows] for layer in layers]
        shared = {layer for layer in layers if not all(row.keeps(layer) for row in rows)}
        written: dict[int, tuple[Tensor, Tensor]] = {}  # by layer, [rows, N, T, W]
        with (
            KVCache(self._pool, plan) as scratch,
            self._recording(rows) as recordings,
        ):

            def caches(layer: int) -> tuple[Tensor, Tensor]:
                written[layer] = (
                    scratch.pair(0) if layer in shared else self._cache.enter(layer, numbers)
                )
                return written[layer]

            def copy(layer: int) -> None:
                if layer in shared and layer in written:
                    self._copy_kept(rows, layer, written[layer])
                for index, recording in recordings.items():
                    recording.copy(layer, written[layer], index)

            logits = self._engines.prefill(
                [row.tokens for row in rows], active, self._bucket, caches, copy
            )
        self._begin(rows)
        return logits

    def begin_chunks(self, row: PromptRow) -> int:
        """Reserve KV memory for a row that `fits_in_chunks` accepted; `chunk` runs its prompt.

        Returns how many of the prompt's first tokens need not run; making room for the row may have
        evicted some cached ones.
        """
        assert self._chunked is None, "one prompt at a time"
        plan = self.memory.chunk_plan(row)
        self._reserve([row], plan)
        self._chunked = chunked = _ChunkedPrompt(row, KVCache(self._pool, plan))
        if self._prefixes is not None and row.runs_whole:
            blocks = self._prefixes.find(row.tokens, row.owner)
            for layer in range(self._num_layers):
                restore(blocks, layer, chunked.cache.pair(layer))
            chunked.done = len(blocks) * BLOCK_TOKENS
        return chunked.done

    def chunk(self, most: int) -> StepLogits | None:
        """Run up to ``most`` more tokens of the begun prompt.

        Returns the logits of the prompt's last token, valid until the next call; None before.
        """
        chunked = self._chunked
        assert chunked is not None, "begin_chunks first"
        row, cache = chunked.row, chunked.cache
        stop = min(chunked.done + most, len(row.tokens))
        layers = range(self._num_layers)
        logits = self._engines.chunk(
            row.tokens[chunked.done : stop],
            chunked.done,
            [row.active_length(layer) for layer in layers],
            self._bucket,
            cache.pair,
            is_last=stop == len(row.tokens),
        )
        chunked.done = stop
        if logits is not None:
            with self._recording([row]) as recordings:
                for layer in layers:
                    if row.keeps(layer):
                        self._copy_kept([row], layer, cache.pair(layer))
                    for recording in recordings.values():
                        recording.copy(layer, cache.pair(layer), 0)
            self._drop_chunked()
            self._begin([row])
        return logits

    @abstractmethod
    def step(self, rows: Sequence[StepRow], ahead: Sequence[StepRow] = ()) -> StepLogits:
        """Run one pass of all running rows, each over the tokens that it feeds.

        A layer runs exactly the tokens whose plan names it, and a token attends to all tokens
        before it. Returns the logits of every token, row after row in the given order, valid until
        the next call. With int8 or int4 products on skipdec's kernels, the results of several
        tokens per row are bitwise those of one token at a time.

        ``ahead``: what the same rows will feed next, except for the tokens, which are not known
        yet; only if `runs_ahead`. That pass may begin at once on tokens that the device guesses.
        The next call uses its results if its rows are among them and turn out to feed these tokens;
        else it runs them again. Rows leave layers at once.

        Raises UsageError, before anything has changed, for tokens that can't be fed, and for
        several tokens per row if the engines take only one.
        """

    @abstractmethod
    def draft(self, rows: Sequence[DraftRow], plan: LayerPlan) -> StepLogits:
        """Run one token of each row through the layers of ``plan``, to guess what follows.

        Each row must reside in these layers, and ``position`` must be after its written positions.
        No row leaves a layer and lengths don't change, so the next passes, in which the row runs at
        least these layers, overwrite the draft's keys and values before they read them. Rows that
        do not draft keep theirs. Returns the logits of the rows in the given order, valid until the
        next call: those of the tokens that the bundle's narrow head scores, if it has one.

        Raises UsageError, before anything has changed, for tokens that can't be fed.
        """

    @abstractmethod
    def draft_trained(self, rows: Sequence[DraftRow]) -> StepLogits:
        """Run one token of each row through the bundle's draft layer, to guess what follows.

        After a pass, each row begins with the token that it feeds next, at the position after its
        written ones; the draft layer reads the states of the pass, or of the prompt. It continues
        with guesses at the next positions. Returns the logits of the tokens that the draft layer
        scores, for the rows in the given order, valid until the next call.

        Raises UsageError, before anything has changed, for tokens that can't be fed.
        """

    @abstractmethod
    def close(self) -> None:
        """Free all bindings and slots."""

    def give_up_prefixes(self, nbytes: int) -> None:
        """Evict prefixes until ``nbytes`` of KV memory are free, or no prefix is left."""
        if self._prefixes is not None:
            others = self._pool.in_use_bytes - self._prefixes.nbytes
            free = max(0, self._pool.limit - others - nbytes)
            self._prefixes.set_limit(min(self._prefixes.nbytes, free))

    def truncate(self, row: int, length: int) -> None:
        """Roll a row back to its first ``length`` positions; later ones are fed again.

        It can't go back beyond the position where the row last left a layer, because that layer's
        keys and values are lost. ``length`` may always be the first position of the last pass.
        Raises UsageError for any other length.
        """
        low, high = self._floors.get(row, 0), self._cache.length(row)
        if not low <= length <= high:
            raise UsageError(
                f"row {row}", f"can be rolled back to {low} to {high} positions, not to {length}"
            )
        self._cache.set_lengths([row], [length])

    def release(self, row: int) -> None:
        """Free the slots of a row that has ended, or whose prompt is abandoned."""
        if self._chunked is not None and row in self._chunked.row.rows:
            self._drop_chunked()
        self._plans.pop(row, None)
        self._floors.pop(row, None)
        self._held.drop(row)
        self._cache.release(row)

    def discard(self, row: int) -> None:
        """Free the slots of a row whose computation failed."""
        self.release(row)

    def reset(self) -> None:
        """Free all rows after a failure, because their keys and values may be wrong."""
        self._drop_chunked()
        self._unbind()
        self._plans.clear()
        self._floors.clear()
        self._held.clear()
        self._cache.close()
        if self._prefixes is not None:
            self._prefixes.clear()

    @property
    @abstractmethod
    def _engines(self) -> Stitcher:
        """The engines, which their holder owns; not to be used after `close`."""

    def _unbind(self) -> None:  # noqa: B027  (devices hold addresses)
        """Drop all bindings to slots, whose buffers are about to be freed."""

    def _require_feedable(self, rows: Sequence[StepRow]) -> None:
        """Raise UsageError, before anything changes, for tokens that can't be fed."""
        for row in rows:
            problem = feeding_problem(row, partial(self._cache.reserved, row.row))
            if problem:
                raise UsageError(f"row {row.row}", problem)

    def _leave_bypassed(self, row: StepRow) -> None:
        """Free the row's slots in the layers that it bypasses from now on."""
        before = self._plans.get(row.row)
        if before is row.plan or before == row.plan:
            return
        kept = frozenset(row.plan.layers)
        layers = range(self._num_layers) if before is None else before.layers
        self._cache.leave(row.row, [layer for layer in layers if layer not in kept])
        self._plans[row.row] = row.plan
        self._floors[row.row] = row.position

    def _fits(self, rows: Sequence[PromptRow], prompts: KVPlan) -> bool:
        capacities = [row.capacities for row in rows for _ in row.rows]
        return self._cache.fits(capacities, prompts.nbytes)

    def _reserve(self, rows: Sequence[PromptRow], prompts: KVPlan) -> None:
        capacities = {number: row.capacities for row in rows for number in row.rows}
        if self._prefixes is not None:
            planned = self._cache.bytes_with(list(capacities.values()), prompts.nbytes)
            limit = self._cache.limit
            self._prefixes.set_limit(min(limit // _PREFIX_SHARE, limit - planned))
        self._cache.reserve(capacities, prompts.nbytes)

    def _begin(self, rows: Sequence[PromptRow]) -> None:
        for row in rows:
            if self.memory.has_draft_layer and row.capacities[self._num_layers]:
                self._cache.enter(self._num_layers, [row.row])  # nothing is written yet
        self._cache.set_lengths([row.row for row in rows], [len(row.tokens) for row in rows])
        for row in rows:
            if row.copies:
                self._cache.fork(row.row, row.copies)

    @contextmanager
    def _recording(self, rows: Sequence[PromptRow]) -> Iterator[dict[int, Recording]]:
        """Yield recordings, by index, of rows with cacheable prefixes; commit them at the end."""
        with ExitStack() as on_failure:
            recordings = {}
            for index, row in enumerate(rows):
                if self._prefixes is not None and row.runs_whole:
                    recordings[index] = self._prefixes.record(row.tokens, row.owner)
                    on_failure.callback(recordings[index].give_up)
            yield recordings
            for recording in recordings.values():
                recording.commit()

    def _copy_kept(
        self, rows: Sequence[PromptRow], layer: int, source: tuple[Tensor, Tensor]
    ) -> None:
        """Enter the rows that keep ``layer``, with the contents of ``source`` [rows, N, T, W]."""
        for index, row in enumerate(rows):
            if row.keeps(layer):
                for target, held in zip(self._cache.enter(layer, [row.row]), source, strict=True):
                    self._pool.memory.copy_between((target, 0), (held, index), len(row.tokens))

    def _drop_chunked(self) -> None:
        if self._chunked is not None:
            self._chunked.cache.close()
            self._chunked = None


@dataclass
class _ChunkedPrompt:
    """A prompt that runs in chunks: its caches in all layers and how many tokens are done."""

    row: PromptRow
    cache: KVCache
    done: int = 0
