"""A request in flight ends at a bounded cost and with correct times."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest

from skipdec import RequestStream, SamplingParams, UsageError
from skipdec.runtime.requests.request import Request
from skipdec.runtime.serving.messages import ServedRequest
from skipdec.runtime.tokens.outputs import CompletionOutput, Logprob, RequestOutput, StreamDelta

COMPLETIONS, TOKENS = 16, 10
ENTRY = {7: Logprob(-1.0, 1)}


class CountedDelta(StreamDelta):
    """Counts reads of its ``index``."""

    reads = 0

    def __getattribute__(self, name: str) -> object:
        CountedDelta.reads += name == "index"
        return super().__getattribute__(name)


def stream_of(params: SamplingParams) -> RequestStream:
    request = Request(0, "a", (5,), params, TOKENS)
    return RequestStream(ServedRequest("a", request, "full", monotonic() + 60), num_layers=2)


def test_a_stream_is_refused_in_another_event_loop() -> None:
    async def submitted() -> RequestStream:
        return stream_of(SamplingParams())

    stream = asyncio.run(submitted())
    for read in (stream.__anext__, stream.read, stream.output):
        with pytest.raises(UsageError, match="belongs to the event loop that submitted it"):
            asyncio.run(asyncio.wait_for(read(), 5))


def test_a_request_outside_an_event_loop_is_refused() -> None:
    with pytest.raises(UsageError, match="outside a running event loop"):
        stream_of(SamplingParams())


def test_an_end_without_a_token_sets_no_first_token_time() -> None:
    async def first_token() -> int | None:
        stream = stream_of(SamplingParams())
        stream.push(StreamDelta(0, 0, (), "", "abort", 0, stop_reason="deadline"))
        return stream.times.first_token

    assert not asyncio.run(first_token())


@pytest.mark.parametrize("is_late", [False, True])
def test_the_end_reads_each_token_once_for_many_completions(is_late: bool) -> None:
    async def ended() -> RequestOutput:
        stream = stream_of(SamplingParams(n=COMPLETIONS, seed=1, logprobs=0))
        for place in range(COMPLETIONS * TOKENS):
            stream.push(CountedDelta(0, place % COMPLETIONS, (7,), "x", None, 2, (ENTRY,)))
        if is_late:
            stream.give_up("deadline")
        else:
            outputs = tuple(
                CompletionOutput(index, "x" * TOKENS, (7,) * TOKENS, logprobs=())
                for index in range(COMPLETIONS)
            )
            stream.finish(RequestOutput("a", None, (5,), outputs, finished=True))
        return await stream.output()

    CountedDelta.reads = 0
    output = asyncio.run(ended())
    assert CountedDelta.reads <= COMPLETIONS * TOKENS
    for one in output.outputs:
        assert (one.text, one.logprobs) == ("x" * TOKENS, (ENTRY,) * TOKENS)
