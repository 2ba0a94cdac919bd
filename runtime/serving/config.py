"""How many requests an AsyncEngine lets wait, and how its engine schedules."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from ...engines.checking import Option, ValidatedConfig
from ..kv.prefix_sharing import PrefixSharing

if TYPE_CHECKING:
    from ..generator import Generator
    from ..scheduling.running_batch import RunningBatch


class ServiceConfig(ValidatedConfig):
    """What waits at most before a request is refused, and how the engine schedules.

    ``max_prefill_tokens``, ``max_model_len``, ``admission`` and ``prefix_cache``: see
    `Generator.running_batch`.
    """

    max_waiting: Annotated[int, Option()] = Field(
        default=256, ge=1, description="requests that wait at most"
    )
    max_prefill_tokens: Annotated[int | None, Option()] = Field(
        default=None,
        ge=16,
        description="tokens of one call for prompts; fewer: texts that run go on sooner (2048)",
    )
    max_model_len: Annotated[int | None, Option()] = Field(
        default=None, ge=1, description="positions of a request, prompt and text (the bundle's)"
    )
    admission: Annotated[str | None, Option()] = Field(
        default=None, description="fcfs, or gang:min_free=2,hold_ms=8 (fcfs; on a GPU: gang)"
    )
    prefix_cache: Annotated[PrefixSharing, Option()] = Field(
        default="shared",
        description="on a CPU, reuse what prompts' beginnings made: all clients', each client's "
        "own only, or off (shared)",
    )

    def engine(self, generator: Generator) -> AbstractContextManager[RunningBatch]:
        """Hold ``generator`` for the engine that is described here. Raises what it does."""
        return generator.running_batch(
            max_prefill_tokens=self.max_prefill_tokens,
            max_model_len=self.max_model_len,
            admission=self.admission,
            prefix_cache=self.prefix_cache,
        )
