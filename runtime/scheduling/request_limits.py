"""RequestLimits: the largest request that a running batch accepts."""

from __future__ import annotations

from dataclasses import dataclass

from ...engines.errors import CapacityError
from ..requests.request import Request
from ..schedule import ExitSchedule
from ..stitching.protocol import SlotMemory
from .running_request import prompt_row


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
        prompt = prompt_row(self.memory.layout, request, schedule, rows)
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
