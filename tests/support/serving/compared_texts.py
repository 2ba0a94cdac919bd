"""Run requests of any kind on a bundle with a tokenizer, and compare their texts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from unittest.mock import patch

from random_requests import run_all

from skipdec import EngineStats, Generator, SamplingParams
from skipdec.runtime.scheduling import running_batch
from skipdec.runtime.scheduling.decoding import Decoding
from skipdec.runtime.tokens.outputs import CompletionOutput, RequestOutput

PROMPTS = ("The quick", "a", "Once upon a time", "skip", "decode", "42")
SCHEDULES = ("full", "linear:max=5,min=2,horizon=12", "constant:max=3")


def greedy(max_tokens: int, **options: object) -> SamplingParams:
    """Return greedy parameters with log-probabilities, changed by ``options``."""
    common = {"temperature": 0, "max_tokens": max_tokens, "ignore_eos": True, "logprobs": 2}
    return SamplingParams.model_validate(common | options)


def fields(one: CompletionOutput) -> tuple[object, ...]:
    """Return all fields of a completion except its times and drafts."""
    return (
        one.text,
        one.token_ids,
        one.logprobs,
        one.cumulative_logprob,
        one.layers_per_token,
        one.finish_reason,
        one.stop_reason,
    )


def shown(outputs: Sequence[RequestOutput]) -> list[tuple[object, ...]]:
    """Return the fields of all completions."""
    return [fields(one) for output in outputs for one in output.outputs]


def run_requests(
    generator: Generator,
    requests: Sequence[SamplingParams],
    decoding: Decoding | None = None,
    *,
    draft: str = "off",
) -> tuple[list[RequestOutput], EngineStats]:
    """Run the requests together, the i-th at the i-th prompt and schedule."""
    given: AbstractContextManager[object] = nullcontext()
    if decoding is not None:
        given = patch.object(running_batch, "make_decoding", lambda *_: decoding)
    with given, generator.running_batch(draft=draft) as batch:
        numbers = [
            batch.add(
                PROMPTS[index % len(PROMPTS)], one, schedule=SCHEDULES[index % len(SCHEDULES)]
            )
            for index, one in enumerate(requests)
        ]
        run_all(batch)
        stats = batch.stats()
        assert stats.reserved_bytes == 0
        return [batch.take(number) for number in numbers], stats
