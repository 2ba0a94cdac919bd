"""Cost of passes over several tokens of a row, which drafts turn into tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random

from typing_extensions import override

from ..drafting.config import MAX_DRAFT_TOKENS
from ..drafting.memory import DraftMemory
from ..generator import Generator
from ..scheduling.drafters import WrappedDrafter
from ..scheduling.running_request import Row
from ..tokens.sampling import SamplingParams
from .drafted_runs import run_with_drafts
from .drafts import ForcedDrafter


class SilentDrafter(WrappedDrafter):
    """Drafts for no row, so that every pass feeds one token of each."""

    @override
    def reach(self, row: Row, most: int) -> int:
        return 0


def measure_pass_costs(
    generator: Generator, prompt: Sequence[int], num_tokens: int, *, rows: int = 1
) -> tuple[float, ...]:
    """Return what passes over 1 to 8 tokens of each of ``rows`` cost, in passes over one.

    ``num_tokens`` are generated greedily behind ``prompt``, with proposals that are always right,
    so that passes of each length come. A cost is the mean of the last 15 passes; one
    of fewer than 3 is estimated. Raises what `Generator.running_batch` raises.
    """
    memory = DraftMemory()
    params = SamplingParams.fixed(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    run = partial(
        run_with_drafts, generator, [prompt] * rows, params, schedule="full", memory=memory
    )
    answers = dict(enumerate(run(draft="own,adapt=no", wrap=SilentDrafter).texts))
    for count in range(MAX_DRAFT_TOKENS, 0, -1):
        forced = partial(ForcedDrafter, answers=answers, share=1.0, random=Random(0))
        run(draft=f"own,adapt=no,tokens={count}", wrap=forced)
    return tuple(memory.costs.pass_costs(rows, MAX_DRAFT_TOKENS + 1))
