"""The generator: batches, streams, cancellation, memory, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from skipdec import ExitSchedule, Generator, SamplingParams
from skipdec.engines.errors import (
    CapacityError,
    ClosedError,
    ScheduleError,
    SkipDecError,
    UsageError,
)

STRUCTURE = "pre_norm"
PROMPTS = [[5, 9, 11], [7], [4, 8, 15, 16, 23, 42], [9, 9], [100, 3], [12, 50, 8]]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
SAMPLED = SamplingParams(temperature=1.5, seed=3, max_tokens=12, ignore_eos=True)
SCHEDULE = "linear:max=4,min=2,warmup=1,horizon=6"


@pytest.fixture
def generator(exported: Callable[..., Path]) -> Iterator[Generator]:
    with Generator.open(exported(STRUCTURE), threads=1, max_batch_size=4) as opened:
        yield opened


def tokens(results: list, index: int = 0) -> list[tuple[int, ...]]:
    return [result.outputs[index].token_ids for result in results]


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("schedule", ["full", SCHEDULE])
def test_results_do_not_depend_on_the_batch(
    generator: Generator, params: SamplingParams, schedule: str
) -> None:
    together = generator.generate(PROMPTS, params, schedule=schedule)
    alone = [generator.generate([prompt], params, schedule=schedule)[0] for prompt in PROMPTS]
    assert tokens(together) == tokens(alone)
    assert [result.prompt_token_ids for result in together] == [tuple(p) for p in PROMPTS]


def test_rows_of_different_lengths_leave_the_batch_one_by_one(generator: Generator) -> None:
    params = [GREEDY.updated(max_tokens=n) for n in (1, 12, 3, 7, 2, 5)]
    results = generator.generate(PROMPTS, params, schedule=SCHEDULE)
    alone = [generator.generate([p], GREEDY, schedule=SCHEDULE)[0] for p in PROMPTS]
    for result, reference, wanted in zip(results, alone, params, strict=True):
        output = result.outputs[0]
        assert output.token_ids == reference.outputs[0].token_ids[: wanted.max_tokens]
        assert output.finish_reason == "length"


def test_n_completions_share_the_prompt_and_differ(generator: Generator) -> None:
    params = SAMPLED.updated(n=6)
    results = generator.generate(PROMPTS[:2], params, schedule=SCHEDULE)
    for result in results:
        assert [output.index for output in result.outputs] == list(range(6))
        assert len({output.token_ids for output in result.outputs}) > 1
    first_alone = generator.generate([PROMPTS[0]], SAMPLED, schedule=SCHEDULE)
    assert results[0].outputs[0].token_ids == first_alone[0].outputs[0].token_ids


def test_layers_per_token_follow_the_schedule(generator: Generator) -> None:
    output = generator.generate([PROMPTS[0]], GREEDY, schedule=SCHEDULE)[0].outputs[0]
    assert output.layers_per_token == (6, 4, 4, 3, 3, 2, 2, 2, 2, 2, 2, 2)


def test_stream_gives_what_generate_gives(generator: Generator) -> None:
    streamed: dict[int, list[int]] = {index: [] for index in range(len(PROMPTS))}
    for delta in generator.stream(PROMPTS, SAMPLED, schedule=SCHEDULE):
        streamed[delta.request_index] += delta.token_ids
    expected = tokens(generator.generate(PROMPTS, SAMPLED, schedule=SCHEDULE))
    assert [tuple(ids) for ids in streamed.values()] == expected


def test_cancelling_keeps_what_was_generated(generator: Generator) -> None:
    steps = 0

    def count(_: object) -> None:
        nonlocal steps
        steps += 1

    results = generator.generate(
        PROMPTS, GREEDY, cancelled=lambda: steps >= 3, on_progress=count, schedule="full"
    )
    reasons = [result.outputs[0].finish_reason for result in results]
    assert reasons == ["abort"] * len(PROMPTS)
    assert sorted(len(ids) for ids in tokens(results)) == [0, 0, 3, 3, 3, 3]
    assert generator.kv_memory.planned == generator.kv_memory.peak


def test_closing_a_stream_frees_the_generator(generator: Generator) -> None:
    stream = generator.stream([PROMPTS[0]], GREEDY)
    next(stream)
    with pytest.raises(SkipDecError, match="is busy"):
        generator.generate([PROMPTS[0]], GREEDY)
    stream.close()
    assert len(tokens(generator.generate([PROMPTS[0]], GREEDY))[0]) == 12


def test_memory_used_is_the_memory_planned(generator: Generator) -> None:
    for schedule in ("full", SCHEDULE):
        generator.generate(PROMPTS, GREEDY, schedule=schedule)
        assert generator.kv_memory.peak == generator.kv_memory.planned > 0
    generator.trim()
    assert generator.kv_memory.held == 0


def test_memory_limit_makes_batches_smaller_and_results_stay(exported: Callable[..., Path]) -> None:
    bundle = exported(STRUCTURE)
    long = GREEDY.updated(max_tokens=40)
    with Generator.open(bundle, threads=1) as roomy:
        expected = tokens(roomy.generate(PROMPTS, long))
        one_row = roomy.generate([PROMPTS[2]], long) and roomy.kv_memory.planned
    with Generator.open(bundle, threads=1, kv_memory=one_row) as tight:
        assert tokens(tight.generate(PROMPTS, long)) == expected
        assert tight.kv_memory.peak <= one_row
    with (
        Generator.open(bundle, threads=1, kv_memory=one_row // 2) as too_tight,
        pytest.raises(CapacityError, match="kv_memory allows"),
    ):
        too_tight.generate(PROMPTS, long)


@pytest.mark.parametrize(
    ("prompts", "params", "message"),
    [
        (None, GREEDY, "is None; allowed: a text, token ids"),
        ({"text": "a"}, GREEDY, "prompt 0 is a mapping with the keys text; allowed"),
        ([[5]], {"n": 2}, r"SamplingParams\(\*\*…\) makes one of it"),
        ([[5]], [None], r"sampling_params\[0\] \| is None"),
        ([[5], []], GREEDY, "prompt 1 has no tokens"),
        ([[5, 99999]], GREEDY, "token id 99999 at 1; allowed: 0 to"),
        ([[5, -1]], GREEDY, "token id -1"),
        ([[5, 1.5]], GREEDY, "1.5 at 1; allowed: integers"),
        ([5, 6], GREEDY, "flat list of token ids"),
        ([[5] * 60], GREEDY, "has 60 tokens and max_tokens is 12; the bundle holds"),
        ([[5], [6]], [GREEDY], "there are 1 for 2 prompts"),
        ([[5]], SamplingParams(stop_token_ids=[99999]), "stop_token_ids has 99999"),
    ],
)
def test_bad_input_is_refused_before_work(
    generator: Generator, prompts: object, params: object, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        generator.stream(prompts, params)


def test_no_prompts_give_no_results(generator: Generator) -> None:
    assert generator.generate([]) == generator.score([], []) == list(generator.stream([])) == []


def test_prompts_may_be_arrays_tensors_and_mappings(generator: Generator) -> None:
    torch = pytest.importorskip("torch")
    expected = tokens(generator.generate([[5, 9], [7, 8]], GREEDY))
    given = (
        np.array([[5, 9], [7, 8]]),
        torch.tensor([[5, 9], [7, 8]]),
        [(np.int32(5), 9), torch.tensor([7, 8])],
        [{"prompt_token_ids": [5, 9]}, {"prompt_token_ids": np.array([7, 8])}],
    )
    assert all(tokens(generator.generate(prompts, GREEDY)) == expected for prompts in given)
    assert tokens(generator.generate({"prompt_token_ids": [5, 9]}, GREEDY)) == expected[:1]


def test_problems_of_all_prompts_come_at_once(generator: Generator) -> None:
    with pytest.raises(UsageError) as caught:
        generator.generate([[], [99999], [5] * 100], GREEDY)
    assert len(caught.value.problems) == 3


def test_schedule_of_another_depth_is_refused(generator: Generator) -> None:
    with pytest.raises(ScheduleError, match="for 7 layers; the bundle has 6"):
        generator.generate([[5]], GREEDY, schedule=ExitSchedule.full(7))


def test_a_closed_generator_says_so(exported: Callable[..., Path]) -> None:
    generator = Generator.open(exported(STRUCTURE), threads=1)
    generator.close()
    generator.close()
    with pytest.raises(ClosedError, match="is closed"):
        generator.generate([[5]], GREEDY)


@pytest.mark.parametrize(
    "options", [{"max_batch_size": 0}, {"kv_memory": 0}, {"threads": 0}, {"schedule": "9x"}]
)
def test_bad_options_are_refused_at_open(exported: Callable[..., Path], options: dict) -> None:
    with pytest.raises(UsageError):
        Generator.open(exported(STRUCTURE), **options)


def test_max_tokens_none_runs_to_the_model_limit(generator: Generator) -> None:
    result = generator.generate([[5] * 50], GREEDY.updated(max_tokens=None))[0]
    assert len(result.outputs[0].token_ids) == generator.model.max_seq_len - 50
    assert result.outputs[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("prompts", "continuations", "message"),
    [
        ([[5]], [[6], [7]], "1 prompts and 2 continuations"),
        ([[5]], [[]], "continuation 0 has no tokens"),
        ([[5] * 60], [[6] * 60], "have 120 tokens"),
    ],
)
def test_bad_scores_are_refused(
    generator: Generator, prompts: list, continuations: list, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        generator.score(prompts, continuations)
