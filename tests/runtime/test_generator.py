"""The generator runs batches and streams, cancels calls, and keeps to its memory."""

from __future__ import annotations

import json
import os
import signal
import weakref
from collections.abc import Callable, Iterator
from itertools import count, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skipdec import Generator, SamplingParams
from skipdec.engines.backends.ort import OrtBackend
from skipdec.engines.errors import (
    ClosedError,
    SkipDecError,
    UsageError,
)
from skipdec.engines.memory import Array, HostMemory
from skipdec.runtime.stitching.host.stitcher import HostStitcher
from skipdec.runtime.tokens.sampler import SampledToken, Sampler

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


def test_n_completions_share_the_prompt_and_differ(generator: Generator) -> None:
    params = SAMPLED.updated(n=6)
    results = generator.generate(PROMPTS[:2], params, schedule=SCHEDULE)
    for result in results:
        assert [output.index for output in result.outputs] == list(range(6))
        assert len({output.token_ids for output in result.outputs}) > 1
    first_alone = generator.generate([PROMPTS[0]], SAMPLED, schedule=SCHEDULE)
    assert results[0].outputs[0].token_ids == first_alone[0].outputs[0].token_ids


def test_layers_per_token_follow_the_schedule(generator: Generator) -> None:
    request = generator.generate([PROMPTS[0]], GREEDY, schedule=SCHEDULE)[0]
    output = request.outputs[0]
    assert output.layers_per_token == (6, 4, 4, 3, 3, 2, 2, 2, 2, 2, 2, 2)
    assert request.layer_ranges == {
        6: ((0, 5),),
        4: ((0, 0), (3, 5)),
        3: ((0, 0), (4, 5)),
        2: ((0, 0), (5, 5)),
    }


@pytest.mark.parametrize("schedule", ["2x", "full", None])
def test_a_neighbour_does_not_change_a_requests_schedule(
    generator: Generator, schedule: str | None
) -> None:
    params = [GREEDY.updated(max_tokens=n) for n in (4, 20, 12, 4, 7, 20)]
    together = generator.generate(PROMPTS, params, schedule=schedule)
    alone = [
        generator.generate([prompt], own, schedule=schedule)[0]
        for prompt, own in zip(PROMPTS, params, strict=True)
    ]
    assert tokens(together) == tokens(alone)
    assert [result.schedule for result in together] == [result.schedule for result in alone]
    if schedule == "2x":
        assert together[0].schedule == "linear:max=4,min=2,warmup=1,horizon=4"
        assert together[1].schedule == "linear:max=4,min=2,warmup=1,horizon=20"
        assert together[0].outputs[0].layers_per_token == (6, 4, 3, 3)


def test_a_neighbour_does_not_change_a_score(generator: Generator) -> None:
    continuations = [[5] * length for length in (3, 9, 4, 3, 20, 7)]
    together = generator.score(PROMPTS, continuations, schedule="2x")
    for prompt, continuation, scored in zip(PROMPTS, continuations, together, strict=True):
        assert generator.score([prompt], [continuation], schedule="2x") == [scored]
        assert scored.schedule.endswith(f"horizon={len(continuation)}")


def test_stream_and_generate_give_the_same_tokens(generator: Generator) -> None:
    streamed: dict[int, list[int]] = {index: [] for index in range(len(PROMPTS))}
    for delta in generator.stream(PROMPTS, SAMPLED, schedule=SCHEDULE):
        streamed[delta.request_index] += delta.token_ids
    expected = tokens(generator.generate(PROMPTS, SAMPLED, schedule=SCHEDULE))
    assert [tuple(ids) for ids in streamed.values()] == expected


def test_cancelling_keeps_generated_tokens(generator: Generator) -> None:
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


def test_a_call_within_a_callback_is_refused(generator: Generator) -> None:
    def call(_: object) -> None:
        generator.generate([PROMPTS[0]], GREEDY)

    with pytest.raises(SkipDecError, match="or a call waits for this function"):
        generator.generate([PROMPTS[0]], GREEDY, on_progress=call)


def test_close_while_sampling_ends_the_call(
    exported: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = 0
    sample = Sampler.sample

    def closing(sampler: Sampler, logits: np.ndarray) -> SampledToken:
        nonlocal draws
        draws += 1
        if draws == 2:  # after a pass with guesses, some of them wrong
            generator.close()
        return sample(sampler, logits)

    monkeypatch.setattr(Sampler, "sample", closing)
    bundle = exported(STRUCTURE, quantize="int8", kernels="auto")
    generator = Generator.open(bundle, threads=1, draft="ends:2,adapt=no,exact=no")
    with pytest.raises(ClosedError):
        generator.generate(PROMPTS[:1], GREEDY, schedule="full")


def test_an_interrupted_call_frees_all_memory(
    exported: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C may come after a buffer's allocation, before its owner holds it."""
    make, taken = HostMemory.tensor, count()

    def interrupted(*arguments: Any) -> Array:  # noqa: ANN401
        if next(taken) == 3:
            raise KeyboardInterrupt
        return make(*arguments)

    with Generator.open(exported(STRUCTURE), threads=1) as generator:
        generator.generate([[5, 6]], GREEDY)
        needed = generator.kv_memory.peak
    with Generator.open(exported(STRUCTURE), threads=1, kv_memory=needed) as generator:
        with monkeypatch.context() as patch:
            patch.setattr(HostMemory, "tensor", interrupted)
            with pytest.raises(KeyboardInterrupt):
                generator.generate([[5, 6]], GREEDY)
        assert len(generator.generate([[5, 6]], GREEDY)) == 1


def test_close_frees_the_engines_of_an_unread_stream(generator: Generator) -> None:
    stream = generator.stream(PROMPTS, GREEDY, schedule=SCHEDULE)
    next(stream)
    with generator._engines.step() as stitcher:
        engines = weakref.ref(stitcher)
    del stitcher
    generator.close()
    assert engines() is None
    assert generator.kv_memory.held == 0
    with pytest.raises(ClosedError):
        list(stream)  # after the deltas of the last step
    assert generator.kv_memory.held == 0


def test_a_fork_is_refused_and_does_not_disturb_its_parent(generator: Generator) -> None:
    expected = tokens(generator.generate([PROMPTS[0]], GREEDY))
    stream = generator.stream([PROMPTS[0]], GREEDY)
    first = next(stream)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # kills a hung child, which fails the test
        try:
            generator.generate([PROMPTS[0]], GREEDY)
        except SkipDecError as error:
            os.write(writer, str(error).encode())
        finally:
            generator.close()
            os._exit(0)
    assert os.waitpid(child, 0) == (child, 0)
    assert b"is a fork" in os.read(reader, 1000)
    os.close(reader)
    os.close(writer)
    rest = [token for delta in stream for token in delta.token_ids]
    assert [(*first.token_ids, *rest)] == expected


def test_used_memory_equals_planned_memory(generator: Generator) -> None:
    for schedule in ("full", SCHEDULE):
        generator.generate(PROMPTS, GREEDY, schedule=schedule)
        assert generator.kv_memory.peak == generator.kv_memory.planned > 0
    generator.trim()
    assert generator.kv_memory.held == 0


@pytest.mark.parametrize(
    ("prompts", "params", "message"),
    [
        (None, GREEDY, "is None; allowed: a text, token ids"),
        ([[5]], {"n": 2}, r"SamplingParams\(\*\*…\) makes one of it"),
        ([[5, 5]], GREEDY.to_dict(), "makes one of it"),
        ([[5]], [None], r"sampling_params\[0\] \| is None"),
        ([[5], []], GREEDY, "prompt 1 has no tokens"),
        ([[5, 99999]], GREEDY, "token id 99999 at 1; allowed: 0 to"),
        ([[5, -1]], GREEDY, "token id -1"),
        ([[5] * 60], GREEDY, "has 60 tokens and max_tokens is 12; the bundle holds"),
        ([[5], [6]], [GREEDY], "there are 1 for 2 prompts"),
        ([[5], [6]], repeat(GREEDY), "there are more than 2 for 2 prompts"),
        ([[5]], SamplingParams(stop_token_ids=[99999]), "stop_token_ids has 99999"),
    ],
)
def test_bad_input_is_refused_before_work(
    generator: Generator, prompts: object, params: object, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        generator.stream(prompts, params)


@pytest.mark.parametrize(
    ("sizes", "length"), [(5, 1), (None, 1), ("8", 1), ([1.5], 1), ([1], None)]
)
def test_warmup_refuses_sizes_that_are_no_integers(
    generator: Generator, sizes: object, length: object
) -> None:
    with pytest.raises(UsageError, match="allowed: integers"):
        generator.warmup(sizes, prompt_length=length)


def test_outputs_serialise_to_json(generator: Generator) -> None:
    params = SAMPLED.updated(logprobs=1, max_tokens=2)
    (output,) = generator.generate(PROMPTS[:1], params)
    document = json.loads(json.dumps(output.to_dict()))
    assert document["outputs"][0]["token_ids"] == list(output.outputs[0].token_ids)
    assert len(document["outputs"][0]["logprobs"]) == 2
    (delta, *_) = generator.stream(PROMPTS[:1], params)
    (score,) = generator.score([[5]], [[6, 7]])
    assert (delta.to_dict()["index"], score.to_dict()["token_ids"]) == (0, (6, 7))
    assert repr(generator).startswith("Generator(EngineBundle('/")
    assert len(repr(generator)) < 300


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


def test_problems_of_all_prompts_are_reported_at_once(generator: Generator) -> None:
    with pytest.raises(UsageError) as caught:
        generator.generate([[], [99999], [5] * 100], GREEDY)
    assert len(caught.value.problems) == 3


def test_a_closed_generator_raises(exported: Callable[..., Path]) -> None:
    generator = Generator.open(exported(STRUCTURE), threads=1)
    generator.close()
    generator.close()
    with pytest.raises(ClosedError, match="is closed"):
        generator.generate([[5]], GREEDY)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_batch_size": 0}, "max_batch_size is 0; allowed: 1 or more"),
        ({"max_batch_size": 10**12}, "max_batch_size is 1000000000000; allowed: 65536 or less"),
        ({"kv_memory": 0}, "kv_memory is 0; allowed: 1 or more"),
        (
            {"kv_memory": "2 giraffes"},
            "kv_memory is '2 giraffes', not a size; allowed: e.g. 512MiB",
        ),
        ({"kv_memory": []}, "kv_memory is"),
        ({"threads": 0}, "threads is 0"),
        ({"schedule": "9x"}, "does not fit 6 layers"),
    ],
)
def test_bad_options_are_refused_and_leave_nothing_open(
    exported: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    options: dict,
    message: str,
) -> None:
    backends: list[str] = []
    monkeypatch.setattr(OrtBackend, "close", lambda _: backends.append("closed"))
    with pytest.raises(UsageError, match=message):
        Generator.open(exported(STRUCTURE), **options)
    assert backends == (
        ["closed"] if "schedule" in options else []
    )  # the others are refused before opening


def test_an_invalid_path_is_refused() -> None:
    for path in (None, 3, b"bundle"):
        with pytest.raises(UsageError, match=r"path \| is .*; allowed: a text or a Path"):
            Generator.open(path)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["cancelled", "on_progress"])
def test_generate_refuses_invalid_callbacks(generator: Generator, name: str) -> None:
    options: dict = {name: True}
    with pytest.raises(UsageError, match=rf"{name} \| is True; allowed: a function"):
        generator.generate([[5]], GREEDY, **options)


def test_stream_refuses_invalid_callbacks_at_the_call(generator: Generator) -> None:
    with pytest.raises(UsageError, match=r"cancelled \| is True; allowed: a function"):
        generator.stream([[5]], GREEDY, cancelled=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_scoring_with_invalid_logits_is_an_error(
    generator: Generator, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    def gather(_: HostStitcher, __: object, rows: np.ndarray) -> np.ndarray:
        logits = np.zeros((len(rows), generator.model.vocab_size), np.float32)
        logits[1, 17] = value
        return logits

    monkeypatch.setattr(HostStitcher, "_gather_logits", gather)
    with pytest.raises(SkipDecError, match=r"text 0 .* 1 of 393 are .* token id 17;"):
        generator.score([[5]], [[6, 7, 8]])


@pytest.mark.parametrize(
    ("prompts", "continuations", "message"),
    [
        ([[5]], [[6], [7]], "1 prompts and 2 continuations"),
        ([[5]], [[]], "continuation 0 has no tokens"),
        ([[5]], [[6] * 999], "continuation 0 has 999 tokens; the bundle .* positions; shorten it"),
        ([[5] * 60], [[6] * 60], "have 120 tokens"),
    ],
)
def test_bad_scores_are_refused(
    generator: Generator, prompts: list, continuations: list, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        generator.score(prompts, continuations)
