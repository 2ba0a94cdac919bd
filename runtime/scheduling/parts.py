"""What an engine is made of, and how it schedules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from ...engines.checking import ValidatedConfig
from ...engines.manifest import ModelSpec
from ..kv.layout import KVLayout
from ..kv.prefix_sharing import PrefixSharing
from ..requests.planning import MAX_PREFILL_TOKENS
from ..requests.scoring import Scorer
from ..schedule.resolver import ScheduleResolver
from ..stitching.loaded import LoadedEngines
from ..stitching.slots import SlotStitcher
from ..tokens.tokenizer import Tokenizer


class EngineConfig(ValidatedConfig):
    """How an engine schedules.

    ``max_prefill_tokens``: of one call for prompts, which bounds the gap between two tokens of
    other texts; longer prompts run in chunks of as many. ``admission``: ``fcfs``, the
    default on a CPU, or ``gang:min_free=2,hold_ms=8``, that on a device. ``fills_first``: prompts
    run as long as there are slots, with no step between, for requests whose texts nobody awaits one
    by one. ``failures``: "end" the rows that one concerns and go on, or "raise" it to the caller of
    ``step``. ``prefixes``: whether kept beginnings of prompts are for all clients or each one's.
    """

    max_prefill_tokens: int = Field(default=MAX_PREFILL_TOKENS, ge=16)
    admission: str | None = None
    fills_first: bool = False
    failures: Literal["end", "raise"] = "end"
    prefixes: PrefixSharing = "shared"


@dataclass(frozen=True)
class EngineParts:
    """What an engine runs on: the generator's own, which it holds as long as it is open."""

    engines: LoadedEngines
    slots: SlotStitcher
    layout: KVLayout
    max_rows: int
    model: ModelSpec
    tokenizer: Tokenizer | None
    schedules: ScheduleResolver
    scorer: Scorer
