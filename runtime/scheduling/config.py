"""RunningBatchConfig: how a running batch schedules its requests."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ...engines.checking import ValidatedConfig
from ..opening import PrefixSharing
from ..requests.planning import MAX_PREFILL_TOKENS


class RunningBatchConfig(ValidatedConfig):
    """Options of a running batch.

    ``max_prefill_tokens`` bounds one call for prompts, and so the gap between two tokens of other
    texts; longer prompts run in chunks of that length. ``admission`` is ``fcfs``, the default on a
    CPU, or ``gang:min_free=2,hold_ms=8``, the default on a device. With ``fills_first`` prompts
    run while slots are free, without a step between them, for texts that nobody reads token by
    token. ``failures``: "end" the rows that a failure concerns and go on, or "raise" the failure to
    the caller of `RunningBatch.step`. ``prefixes`` says whether clients share kept prefixes.
    """

    max_prefill_tokens: int = Field(default=MAX_PREFILL_TOKENS, ge=16)
    admission: str | None = None
    fills_first: bool = False
    failures: Literal["end", "raise"] = "end"
    prefixes: PrefixSharing = "shared"
