"""A generator's running batch, held with the options that its bundle was opened with."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from ..opening import OpenOptions

if TYPE_CHECKING:
    from ..generator import Generator
    from ..scheduling.running_batch import RunningBatch

ServiceConfig = OpenOptions
"""Deprecated name of `OpenOptions`, kept for one release."""


def hold_engine(generator: Generator, options: OpenOptions) -> AbstractContextManager[RunningBatch]:
    """Hold ``generator`` for a running batch. Raises what `Generator.running_batch` raises."""
    return generator.running_batch(
        max_prefill_tokens=options.max_prefill_tokens,
        max_model_len=options.max_model_len,
        admission=options.admission,
        prefix_cache=options.prefix_cache,
    )
