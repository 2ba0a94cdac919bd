"""Workers that draft write the same texts, and their figures add up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from compared_texts import shown
from workers import settings

from skipdec import (
    EngineStats,
    RequestOutput,
    SamplingParams,
)
from skipdec.engines.kernels.library import find_library
from skipdec.runtime.scheduling.stats import Counters
from skipdec.runtime.serving.process.engine import ProcessEngine
from skipdec.runtime.serving.service import EngineService

pytestmark = [
    pytest.mark.slow,  # most start a process
    pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled"),
]

DRAFT = "own+lookup,adapt=no"
PARAMS = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
SAMPLED = PARAMS.updated(temperature=0.9, seed=7, n=2, logprobs=2)
PROMPTS = [[5, 6, 7], [8, 9], [10, 11, 12, 13], [5, 9]]


async def written(engine: EngineService, draft: str | None = None) -> list[RequestOutput]:
    calls = [
        engine.generate(prompt, params, draft=draft)
        for params in (PARAMS, SAMPLED)
        for prompt in PROMPTS
    ]
    return await asyncio.gather(*calls)


def require_consistent_figures(stats: EngineStats, outputs: list[RequestOutput]) -> None:
    """Check that the figures of requests add up to those of their engine."""
    completions = [one for output in outputs for one in output.outputs]
    drafts = [one.drafts for one in completions if one.drafts is not None]
    assert stats.step_rows + stats.accepted_draft_tokens == (
        stats.generated_tokens - len(completions)
    )
    assert sum(one.passes for one in drafts) == stats.step_rows
    assert sum(one.drafted for one in drafts) == stats.draft_tokens
    assert sum(one.accepted for one in drafts) == stats.accepted_draft_tokens
    assert 0 < stats.accepted_draft_tokens <= stats.draft_tokens
    histogram = stats.histograms["accepted_of_a_pass"]
    assert histogram.total == stats.accepted_draft_tokens
    assert sum(histogram.counts) <= stats.step_rows


def test_figures_of_a_worker_that_drafts_add_up(bundle: Path) -> None:
    async def main() -> None:
        async with ProcessEngine.opened(settings(bundle, draft=DRAFT, threads=1)) as engine:
            assert str(engine.inputs.draft) == DRAFT
            first = await written(engine)
            require_consistent_figures(engine.stats(), first)
            second = await written(engine)  # with n-grams of the first calls
            require_consistent_figures(engine.stats(), first + second)
            off = await written(engine, draft="off")
            assert all(one.drafts is None for output in off for one in output.outputs)
            assert shown(first) == shown(second) == shown(off)

    asyncio.run(main())


def test_the_total_has_the_largest_drafting_of_all_workers() -> None:
    present = dict.fromkeys(
        ("requests", "running", "waiting", "reserved_bytes", "prefix_bytes", "limit_bytes"), 0
    )
    stats = [Counters.zero(2).snapshot(drafting=count, **present) for count in (2, 5, 0)]
    assert EngineStats.total(stats).drafting == 5
    assert stats[1].ended(0).drafting == 0
