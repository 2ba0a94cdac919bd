"""Cost of passes over several tokens of a row, which drafts turn into tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from typing_extensions import override

from ..drafting.config import MAX_DRAFT_TOKENS
from ..drafting.memory import DraftMemory
from ..generator import Generator
from ..scheduling.drafted_decoding import DraftedDecoding
from ..scheduling.drafters import Drafter, RowDrafts, WrappedDrafter
from ..tokens.sampling import SamplingParams
from .drafts import ForcedDrafter


class SilentDrafter(WrappedDrafter):
    """Proposes nothing, so that every pass feeds one token of each row."""

    @override
    def propose(self, rows: Sequence[RowDrafts], most: int) -> list[Sequence[int]]:
        return [()] * len(rows)


def measure_pass_costs(
    generator: Generator, prompt: Sequence[int], num_tokens: int, *, rows: int = 1
) -> tuple[float, ...]:
    """Return what passes over 1 to 8 tokens of each of ``rows`` cost, in passes over one.

    ``num_tokens`` are generated greedily behind ``prompt``, with proposals that are always right,
    so that passes of each length come. A cost is the lower quartile of the last 15 passes; one
    of fewer than 3 is estimated. Raises what `Generator.running_batch` raises.
    """
    memory = DraftMemory()
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    answers = _run(generator, memory, [prompt] * rows, params, MAX_DRAFT_TOKENS, SilentDrafter)
    known = dict(enumerate(answers))
    for count in range(MAX_DRAFT_TOKENS, 0, -1):
        make = partial(ForcedDrafter, answers=known, share=1.0, random=Random(0))
        _run(generator, memory, [prompt] * rows, params, count, make)
    return tuple(memory.costs.pass_cost(rows, count) for count in range(1, MAX_DRAFT_TOKENS + 2))


def _run(
    generator: Generator,
    memory: DraftMemory,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    count: int,
    make: Callable[[Drafter], Drafter],
) -> list[tuple[int, ...]]:
    """Return the texts of prompts that run together, up to ``count`` drafts a pass."""
    draft = f"own,adapt=no,tokens={count}"
    with generator.running_batch(draft=draft, draft_memory=memory, prefix_cache=False) as batch:
        assert isinstance(batch.decoding, DraftedDecoding)
        batch.decoding.replace_drafters(make)
        numbers = [batch.add(list(prompt), params, schedule="full") for prompt in prompts]
        while batch.is_busy:
            batch.step()
        return [batch.take(number).outputs[0].token_ids for number in numbers]
