"""LoadedBundle: a bundle whose engines are loaded, and the limits of what they run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, Self

from pydantic import Field

from ...engines.backends.session import EngineBackend
from ...engines.bundle import EngineBundle
from ...engines.checking import ValidatedConfig
from ...engines.constants import integer
from ...engines.errors import CapacityError, UsageError
from ...engines.manifest import Manifest, ModelSpec, TensorRole
from ..drafting.config import MAX_DRAFT_TOKENS, DraftConfig
from ..drafting.memory import DraftMemory
from ..drafting.resolver import DraftResolver
from ..kv.buffers import BufferPool, KVLayout
from ..kv.cache import capacity_class, row_class
from ..opening import OpenOptions, PrefixSharing
from ..requests.request import Request
from ..schedule import ExitSchedule
from ..schedule.request_schedules import ScheduleResolver
from ..stitching.loaded import EngineLock, load_stitcher, make_slots
from ..stitching.protocol import PromptRow, SlotLimits, SlotMemory
from ..stitching.slot_stitcher import SlotStitcher
from ..tokens.tokenizer import Tokenizer

# Enough tokens for matrix products to run at full speed; more would only cost activation memory.
MAX_PREFILL_TOKENS = integer("default_max_prefill_tokens")
# A device is idle between two calls: 64 prompts of 128 tokens are done sooner in one than in four.
_MOST_DEVICE_TOKENS = 4 * MAX_PREFILL_TOKENS
# Each layer's session keeps what it allocated for its longest call. Per token and element of the
# hidden state: two bytes each for products, biases and activations, four inside norms.
_ACTIVATION_BYTES = 48
# Memory that calls leave behind for others of similar lengths, which then find their engines bound.
_LEAST_IDLE_BYTES = 32 << 20


class RunningBatchConfig(ValidatedConfig):
    """Options of a running batch.

    ``max_prefill_tokens`` bounds one call for prompts, and so the gap between two tokens of other
    texts; longer prompts run in chunks of that length. None: what `BatchLimits` has. With
    ``fills_first`` prompts run while slots are free, without a step between them, for texts that
    nobody reads token by token.
    ``failures``: "end" the rows that a failure concerns, or "raise" it from `RunningBatch.step`.
    ``draft`` was checked against the bundle.
    """

    max_prefill_tokens: int | None = Field(default=None, ge=16)
    admission: str | None = None
    fills_first: bool = False
    failures: Literal["end", "raise"] = "end"
    prefixes: PrefixSharing = "shared"
    draft: DraftConfig | None = None


@dataclass(frozen=True)
class BatchLimits:
    """Limits of every batch of a bundle.

    One call for prompts has at most ``max_prefill_rows`` of up to ``max_prompt_tokens`` each, None
    where only the model bounds them. ``kv_buckets`` are the static capacities of the engines,
    ascending, or empty where they take any capacity. ``prefill_tokens`` is what a call for prompts
    takes where nobody says how many. With ``pads_rows`` steps run on 1, 2, 4, …
    rows, up to ``max_batch_size``.
    """

    max_batch_size: int
    max_prefill_rows: int
    kv_bytes: int
    kv_buckets: tuple[int, ...] = ()
    pads_rows: bool = False
    max_prompt_tokens: int | None = None
    prefill_tokens: int = MAX_PREFILL_TOKENS

    @classmethod
    def of(cls, manifest: Manifest, *, max_batch_size: int, kv_bytes: int, on_device: bool) -> Self:
        """Return the limits of a bundle's engines; TensorRT's were built for limits of their own.

        Raises UsageError if ``max_batch_size`` is more rows than the engines were built for.
        """
        build = manifest.build
        if build is None:
            return cls(max_batch_size, max_batch_size, kv_bytes, pads_rows=on_device)
        if max_batch_size > build.max_batch_size:
            raise UsageError(
                "max_batch_size",
                f"is {max_batch_size}; the engines were built for up to {build.max_batch_size} "
                "rows; lower it, or build them again with --max-batch-size",
            )
        return cls(
            max_batch_size,
            min(max_batch_size, build.max_prefill_rows),
            kv_bytes,
            build.kv_buckets,
            pads_rows=True,
            max_prompt_tokens=build.max_prompt_len,
        )

    def check_prompt(self, subject: str, num_tokens: int) -> Iterator[str]:
        """Yield a problem if a prompt of ``num_tokens`` is too long for the engines."""
        if self.max_prompt_tokens is not None and num_tokens > self.max_prompt_tokens:
            yield (
                f"{subject} has {num_tokens} tokens; the engines were built for prompts of up to "
                f"{self.max_prompt_tokens}; shorten it, or build them again with --max-prompt-len"
            )

    def kv_bucket(self, positions: int) -> int | None:
        """Return the smallest static capacity that holds ``positions``, or None without any."""
        return next((bucket for bucket in self.kv_buckets if bucket >= positions), None)

    def slot_limits(self, max_model_len: int | None, longest: int) -> SlotLimits:
        """Return the limits of a running batch whose rows have up to ``max_model_len`` positions.

        None allows as many as the engines hold, at most ``longest``, the bundle's own number.
        Raises UsageError for more than that.
        """
        most = self._most_positions(longest)
        positions = most if max_model_len is None else max_model_len
        if positions > most:
            raise UsageError(
                "max_model_len", f"is {positions}; the bundle holds {most} positions; lower it"
            )
        return self._slot_limits(self.max_batch_size, positions, positions)

    def call_limits(self, requests: Sequence[Request], longest: int) -> SlotLimits:
        """Return the limits of a batch that runs ``requests`` and no others.

        Capacities come in few sizes, so that calls of similar lengths reuse the same bindings. The
        running batch refuses requests that are too long for any capacity.
        """
        rows = max(1, min(self.max_batch_size, sum(one.params.n for one in requests)))
        lengths = (len(one.prompt_token_ids) + one.max_tokens for one in requests)
        positions = min(max(lengths, default=1), self._most_positions(longest))
        return self._slot_limits(
            self.padded_rows(rows), positions, capacity_class(positions, longest)
        )

    def _most_positions(self, longest: int) -> int:
        """Return the positions of the longest row; its cache holds one less than its tokens."""
        return min(longest, self.kv_buckets[-1] + 1) if self.kv_buckets else longest

    def _slot_limits(self, rows: int, positions: int, capacity: int) -> SlotLimits:
        bucket = self.kv_bucket(max(1, positions - 1))
        return SlotLimits(
            max_rows=rows,
            max_positions=positions,
            capacity=bucket or capacity,
            kv_bytes=self.kv_bytes,
            bucket=bucket,
            most_prompts=self.max_prefill_rows if self.kv_buckets else None,
            most_prompt_tokens=self.max_prompt_tokens,
        )

    def padded_rows(self, rows: int) -> int:
        """Return the number of rows that a step of ``rows`` rows runs on: 1, 2, 4, … on a device.

        >>> [BatchLimits(6, 6, 1, pads_rows=True).padded_rows(rows) for rows in (2, 3, 5)]
        [2, 4, 6]
        """
        if not self.pads_rows:
            return rows
        return row_class(rows, self.max_batch_size)


@dataclass(frozen=True)
class RequestLimits:
    """The most that a request may need while nothing else runs; any process can check it.

    Up to ``max_rows`` completions run at once, each with up to ``max_positions`` tokens of prompt
    and text. A prompt of more than ``max_chunk_tokens`` runs in chunks. ``kv_bytes`` is None where
    KV memory has no bound.
    """

    max_rows: int
    max_positions: int
    max_chunk_tokens: int
    kv_bytes: int | None
    memory: SlotMemory

    def require_possible(self, request: Request, schedule: ExitSchedule) -> None:
        """Raise CapacityError if the request could not run even alone."""
        require_rows(request, self.max_rows)
        self.require_memory(request, schedule, request.params.n, "prompt")

    def require_memory(
        self, request: Request, schedule: ExitSchedule, rows: int, subject: str
    ) -> None:
        """Raise CapacityError if ``rows`` of the request's completions don't fit even alone."""
        tokens = len(request.prompt_token_ids)
        asked = f"{tokens} tokens and max_tokens {request.max_tokens}"
        positions = tokens + request.max_tokens
        if positions > self.max_positions:
            raise CapacityError(
                subject,
                f"{asked} are {positions:,} positions; max_model_len allows "
                f"{self.max_positions:,}; raise it, shorten the prompt or lower max_tokens",
            )
        prompt = PromptRow.of(
            request.prompt_token_ids,
            schedule,
            request.max_tokens,
            self.memory.layout,
            rows=range(rows),
            has_draft_layer=self.memory.has_draft_layer,
        )
        needed = self.memory.alone(prompt, in_chunks=tokens > self.max_chunk_tokens)
        if self.kv_bytes is not None and needed > self.kv_bytes:
            raise CapacityError(
                subject,
                f"{asked} need {needed:,} bytes of KV cache; kv_memory allows {self.kv_bytes:,}; "
                "raise it, shorten the prompt, lower max_tokens or use a schedule with fewer "
                "layers",
            )


def device_prefill_tokens(model: ModelSpec, nbytes: int) -> int:
    """Return the tokens of a call for prompts whose activations take up to ``nbytes`` on a device.

    It is 2,048, 4,096 or 8,192; opt-1.3b's need 19.3 GB for the last.
    """
    token_bytes = model.num_layers * model.hidden_size * _ACTIVATION_BYTES
    tokens = _MOST_DEVICE_TOKENS
    while tokens > MAX_PREFILL_TOKENS and tokens * token_bytes > nbytes:
        tokens //= 2
    return tokens


def require_rows(request: Request, max_rows: int) -> None:
    """Raise CapacityError for more completions than run at once."""
    rows = request.params.n
    if rows > max_rows:
        raise CapacityError(
            "prompt",
            f"has n {rows}; the engine runs up to {max_rows} rows at once; lower n or raise "
            "max_batch_size",
        )


@dataclass(frozen=True)
class LoadedBundle:
    """A bundle with its engines loaded; `EngineLock` guards who uses them."""

    model: ModelSpec
    tokenizer: Tokenizer | None
    schedules: ScheduleResolver
    layout: KVLayout
    limits: BatchLimits
    engines: EngineLock
    drafts: DraftResolver
    draft_memory: DraftMemory = field(default_factory=DraftMemory)

    @classmethod
    def load(
        cls,
        bundle: EngineBundle,
        backend: EngineBackend,
        options: OpenOptions,
        tokenizer: Tokenizer | None,
        schedules: ScheduleResolver,
    ) -> Self:
        """Load the engines of ``bundle`` by ``backend``, which belongs to the result."""
        device = backend.device
        limits = BatchLimits.of(
            bundle.manifest,
            max_batch_size=options.max_batch_size,
            kv_bytes=options.kv_memory or 0,
            on_device=device is not None,
        )
        runs_on = "cpu" if device is None else device.kind
        drafts = DraftResolver(bundle.manifest, runs_on, options.draft)
        draft = drafts.resolve()
        stitcher = load_stitcher(bundle, backend, limits.max_batch_size, limits.padded_rows)
        # The free memory is known once the engines are loaded.
        kv_bytes = options.kv_memory or backend.memory.available_bytes() // options.kv_shares
        prefill_tokens = MAX_PREFILL_TOKENS
        if device is not None:
            activations = device.memory_info()[0] // options.kv_shares - kv_bytes
            prefill_tokens = device_prefill_tokens(bundle.manifest.model, activations)
        pool = BufferPool(
            backend.memory,
            kv_bytes,
            keeps_idle=device is not None,
            least_idle=_LEAST_IDLE_BYTES,
        )
        engines = EngineLock(stitcher, backend, pool)
        if draft is not None:
            engines.load_drafts(draft)
        return cls(
            model=bundle.manifest.model,
            tokenizer=tokenizer,
            schedules=schedules,
            layout=KVLayout.of(bundle.manifest.layers[0].tensor(TensorRole.PAST_KEY)),
            limits=replace(limits, kv_bytes=kv_bytes, prefill_tokens=prefill_tokens),
            engines=engines,
            drafts=drafts,
        )

    def remembering(self, memory: DraftMemory | None) -> Self:
        """Return this bundle with ``memory`` for what drafts learn; None keeps its own."""
        return self if memory is None else replace(self, draft_memory=memory)

    def batch_slots(
        self, max_model_len: int | None, draft: DraftConfig | None, *, keeps_prefixes: bool
    ) -> SlotStitcher:
        """Return slots for requests that come and go, with ``draft``; they take no memory yet.

        Each row has up to ``max_model_len`` positions, or without it as many as the bundle holds.
        Raises UsageError for more than that.
        """
        self.drafts.warn_of_unused(draft, [self.schedules.resolve(None, 1)])
        limits = self.limits.slot_limits(max_model_len, self.model.max_seq_len)
        return self._slots(limits, draft, keeps_prefixes=keeps_prefixes)

    def call_slots(self, requests: Sequence[Request], draft: DraftConfig | None) -> SlotStitcher:
        """Return slots with no more memory than ``requests`` need, where no other will come."""
        limits = self.limits.call_limits(requests, self.model.max_seq_len)
        return self._slots(limits, draft, exact=True)

    def request_limits(self, slots: SlotStitcher, max_prefill_tokens: int) -> RequestLimits:
        """Return the most that a request may need alone on ``slots``."""
        max_call = slots.limits.most_prompt_tokens or max_prefill_tokens
        return RequestLimits(
            max_rows=self.limits.max_batch_size,
            max_positions=slots.limits.max_positions,
            max_chunk_tokens=min(max_prefill_tokens, max_call),
            kv_bytes=self.engines.pool.limit,
            memory=slots.memory,
        )

    def _slots(
        self,
        limits: SlotLimits,
        draft: DraftConfig | None,
        *,
        exact: bool = False,
        keeps_prefixes: bool = False,
    ) -> SlotStitcher:
        if draft is not None and limits.bucket is None:
            # A device pads each row to the longest one's tokens, and that is written, too.
            limits = replace(limits, capacity=limits.capacity + MAX_DRAFT_TOKENS)
        return make_slots(
            self.engines.require_usable(),
            self.engines.pool,
            self.layout,
            self.model.num_layers,
            limits,
            exact=exact,
            keeps_prefixes=keeps_prefixes,
            has_draft_layer=draft is not None and draft.uses_draft_layer,
        )

    @cached_property
    def call_config(self) -> RunningBatchConfig:
        """The options of the batch of a call, whose texts nobody reads token by token.

        On a CPU two requests start together: their prompts share one read of the weights and run
        at similar depths, which makes texts of similar length 2 to 7 % faster than one by one, and
        others no slower. On a device a quarter of the rows start together, or fewer after 50 ms: in
        a simulation that gave 9 to 14 % more short texts per second than one by one and 7 % fewer
        long ones; against static batches, 4 % and 60 % more.
        """
        admission = "gang:min_free=2,hold_ms=1000000"
        if self.limits.pads_rows:
            admission = f"gang:min_free={max(2, self.limits.max_batch_size // 4)},hold_ms=50"
        return RunningBatchConfig(admission=admission, fills_first=True, failures="raise")
