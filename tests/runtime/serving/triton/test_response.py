"""Responses of streams and whole answers hold the right pieces of each completion."""

from __future__ import annotations

import json

import pytest

from skipdec import ExitSchedule, SamplingParams, SkipDecError
from skipdec.runtime.schedule.text import parse_schedule
from skipdec.runtime.serving.triton.tensors import Answer, TritonRequest
from skipdec.runtime.tokens.outputs import (
    CompletionOutput,
    Drafts,
    FinishReason,
    Logprob,
    RequestOutput,
    StreamDelta,
)


def delta(text: str, token: int, *, index: int = 0, end: FinishReason | None = None) -> StreamDelta:
    return StreamDelta(
        0, index, (token,), text, end, layers=3 + index, logprobs=({token: Logprob(-0.5, 1)},)
    )


def answer(*, n: int = 1, has_text: bool = True, **flags: bool) -> Answer:
    request = TritonRequest(text_input="p", params=SamplingParams(n=n), **flags)  # type: ignore[arg-type]
    return Answer(request, schedule=ExitSchedule.full(6), num_input_tokens=4, has_text=has_text)


def test_a_stream_waits_for_whole_characters_and_drops_no_token() -> None:
    sent = answer(stream=True, return_token_ids=True)
    sent.add(delta("", 1))
    assert not sent.is_due
    sent.add(delta("é", 2))
    assert sent.is_due
    assert sent.take()["token_ids"].tolist() == [1, 2]
    sent.add(delta("", 3, end="stop"))
    assert sent.is_whole
    last = sent.take()
    assert last["text_output"].tolist() == [b""]
    assert last["token_ids"].tolist() == [3]


def test_without_a_tokenizer_each_token_is_sent() -> None:
    sent = answer(stream=True, has_text=False)
    sent.add(delta("", 1))
    assert sent.is_due


def test_without_stream_one_response_has_all_completions() -> None:
    whole = answer(
        n=2,
        return_finish_reason=True,
        return_token_ids=True,
        return_layers_per_token=True,
        return_num_output_tokens=True,
        return_num_input_tokens=True,
        return_schedule=True,
        return_logprobs=True,
        return_cumulative_logprob=True,
    )
    for step in (delta("b", 7, index=1), delta("a", 5), delta("c", 8, index=1, end="stop")):
        whole.add(step)
        assert not whole.is_due
    whole.add(delta("", 6, end="length"))
    outputs = {name: array.tolist() for name, array in whole.take().items()}
    logprobs = [json.loads(text) for text in outputs.pop("logprobs")]
    tokens = [[token for step in completion for token in step] for completion in logprobs]
    assert tokens == [["5", "6"], ["7", "8"]]
    assert outputs == {
        "text_output": [b"a", b"bc"],
        "finish_reason": [b"length", b"stop"],
        "token_ids": [5, 6, 7, 8],
        "layers_per_token": [3, 3, 4, 4],
        "num_output_tokens": [2, 2],
        "num_input_tokens": [4],
        "schedule": [b"full"],
        "cumulative_logprob": [-1.0, -1.0],
    }


def test_each_completion_has_its_own_finish_reason() -> None:
    whole = answer(n=3)
    for index, reason in enumerate(("stop", "length", "stop")):
        whole.add(delta("a", 5, index=index, end=reason))
    assert whole.finish_reasons == ["stop", "length", "stop"]


def test_the_prompt_precedes_the_text_once() -> None:
    shown = answer(stream=True, exclude_input_in_output=False)
    shown.add(delta("a", 1))
    assert shown.take()["text_output"].tolist() == [b"pa"]
    shown.add(delta("b", 2))
    assert shown.take()["text_output"].tolist() == [b"b"]


def test_drafted_tokens_are_counted_in_the_last_response() -> None:
    flags = {"return_num_draft_tokens": True, "return_num_accepted_draft_tokens": True}
    sent = answer(n=2, stream=True, **flags)
    sent.add(delta("a", 5))
    assert sent.take()["num_draft_tokens"].tolist() == [0, 0]
    sent.add(delta("b", 6, end="stop"))
    sent.add(delta("c", 6, index=1, end="stop"))
    ended = CompletionOutput(0, "ab", (5, 6), drafts=Drafts(passes=1, drafted=3, accepted=2))
    without = CompletionOutput(1, "c", (6,))
    sent.count_drafts(RequestOutput("0", "p", (4,), (ended, without), finished=True))
    last = sent.take()
    assert last["num_draft_tokens"].tolist() == [3, 0]
    assert last["num_accepted_draft_tokens"].tolist() == [2, 0]


def test_a_failed_computation_is_an_error() -> None:
    failed = StreamDelta(0, 0, (), "", "error", 0, stop_reason="logits are NaN")
    with pytest.raises(SkipDecError, match="logits are NaN"):
        answer().add(failed)


def test_layer_ranges_are_sent_with_the_tokens_that_ran_them() -> None:
    request = TritonRequest(text_input="p", stream=True, return_layer_ranges=True)
    schedule = parse_schedule("linear:max=3,min=3,horizon=4", num_layers=6)
    sent = Answer(request, schedule=schedule, num_input_tokens=4, has_text=True)
    sent.add(StreamDelta(0, 0, (5,), "a", None, layers=6))
    assert json.loads(sent.take()["layer_ranges"].item()) == {"6": [[0, 5]]}
    sent.add(StreamDelta(0, 0, (6,), "b", "stop", layers=3))
    assert json.loads(sent.take()["layer_ranges"].item()) == {"3": [[0, 0], [4, 5]]}
