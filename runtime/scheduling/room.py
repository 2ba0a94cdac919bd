"""Whether requests fit: alone, at any time, and beside what runs, now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...engines.errors import CapacityError
from ..requests.request import Request
from ..schedule import ExitSchedule
from ..stitching.prompt_rows import PromptRow
from ..stitching.slot_memory import SlotMemory
from .job import prompt_row
from .parts import EngineConfig, EngineParts


@dataclass(frozen=True)
class RequestLimits:
    """What a request may need at most if nothing else runs, for whoever checks requests.

    ``max_rows`` run at once, of ``max_positions`` each, prompt and text; a prompt of more than
    ``max_chunk_tokens`` runs in chunks. ``kv_bytes``: None is no bound.
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
        prompt = prompt_row(self.memory.layout, request, schedule, 0, rows)
        needed = self.memory.alone(prompt, in_chunks=tokens > self.max_chunk_tokens)
        if self.kv_bytes is not None and needed > self.kv_bytes:
            raise CapacityError(
                subject,
                f"{asked} need {needed:,} bytes of KV cache; kv_memory allows {self.kv_bytes:,}; "
                "raise it, shorten the prompt, lower max_tokens or use a schedule with fewer "
                "layers",
            )


def require_rows(request: Request, max_rows: int) -> None:
    """Raise CapacityError for more completions than run at once."""
    rows = request.params.n
    if rows > max_rows:
        raise CapacityError(
            "prompt",
            f"has n {rows}; the engine runs up to {max_rows} rows at once; lower n or raise "
            "max_batch_size",
        )


class Room:
    """The slots and KV memory of an engine, as far as admission goes."""

    def __init__(self, parts: EngineParts, config: EngineConfig) -> None:
        self._slots = parts.slots
        limits = parts.slots.limits
        most = limits.most_prompt_tokens or config.max_prefill_tokens
        self.limits = RequestLimits(
            max_rows=parts.max_rows,
            max_positions=limits.max_positions,
            max_chunk_tokens=min(config.max_prefill_tokens, most),
            kv_bytes=parts.engines.pool.limit,
            memory=parts.slots.memory,
        )

    def has(self, prompts: Sequence[PromptRow]) -> bool:
        """Whether these can be let in now, together; one that runs in chunks comes alone."""
        first = prompts[0]
        if len(first.tokens) > self.limits.max_chunk_tokens or self.kept_tokens(first):
            assert len(prompts) == 1, "what runs in chunks runs alone"
            return self._slots.fits_in_chunks(first)
        return self._slots.fits(prompts)

    def kept_tokens(self, prompt: PromptRow) -> int:
        """See `SlotStitcher.kept_tokens`."""
        return self._slots.kept_tokens(prompt)
