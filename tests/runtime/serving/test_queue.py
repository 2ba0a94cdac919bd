"""Requests wait in a queue for engines, which these tests replace by lists of messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from skipdec import RequestStream, SamplingParams, UsageError, WorkerDiedError
from skipdec.runtime.requests.request import Request
from skipdec.runtime.serving.messages import (
    Begun,
    Cancellation,
    ServedRequest,
    StepResult,
    ToEngine,
)
from skipdec.runtime.serving.queue import RequestQueue, Suspects
from skipdec.runtime.tokens.outputs import CompletionOutput, RequestOutput


class Worker:
    """An engine that keeps the messages sent to it."""

    def __init__(self) -> None:
        self.messages: list[ToEngine] = []

    @property
    def has(self) -> list[str]:
        return [one.request_id for one in self.messages if isinstance(one, ServedRequest)]


class QueueUnderTest:
    """Submits and ends requests by name; each prompt is one token."""

    def __init__(self) -> None:
        self.now = 0.0
        self.queue = RequestQueue("test", 99, Suspects(timeout=60, clock=lambda: self.now))

    def worker(self) -> Worker:
        worker = Worker()
        self.queue.connect(worker.messages.append)
        return worker

    def submit(self, name: str, token: int, deadline: float | None = None) -> RequestStream:
        request = Request(0, name, (token,), SamplingParams(seed=1), 16)
        stream = RequestStream(ServedRequest(name, request, "full", deadline), num_layers=2)
        self.queue.admit(stream, retry_after=lambda: 1.0)
        return stream

    def begin(self, *names: str) -> None:
        self.queue.take(Begun(names))

    def end(self, name: str, reason: Any = "length") -> None:  # noqa: ANN401
        output = CompletionOutput(0, "", (7,), finish_reason=reason)
        self.queue.take(StepResult(ended=[RequestOutput(name, None, (5,), (output,), True)]))


def run(test: Callable[[QueueUnderTest], Any]) -> None:
    async def main() -> None:
        await test(QueueUnderTest())

    asyncio.run(main())


def test_requests_wait_for_a_worker_and_reach_it_in_order() -> None:
    async def test(tested: QueueUnderTest) -> None:
        streams = [tested.submit(name, index) for index, name in enumerate("abc")]
        worker = tested.worker()
        assert worker.has == ["a", "b", "c"]
        tested.end("b")
        output = await streams[1].output()
        assert output.prompt == "b"  # the text never left this process

    run(test)


def test_a_waiting_request_is_retried_once() -> None:
    async def test(tested: QueueUnderTest) -> None:
        tested.worker()
        ran, waited = tested.submit("ran", 1), tested.submit("waited", 2)
        tested.begin("ran")
        assert tested.queue.disconnect("by chance") == 1
        with pytest.raises(WorkerDiedError, match="while the text ran"):
            await ran.output()
        late = tested.submit("late", 3)
        assert tested.worker().has == ["waited", "late"]
        assert tested.queue.disconnect("again") == 0
        with pytest.raises(WorkerDiedError, match="died twice"):
            await waited.output()
        assert tested.worker().has == ["late"]
        tested.end("late")
        assert (await late.output()).finished

    run(test)


def test_cancelled_and_late_requests_are_not_retried() -> None:
    async def test(tested: QueueUnderTest) -> None:
        worker = tested.worker()
        left = tested.submit("left", 1)
        left.cancel()
        assert worker.messages[-1] == Cancellation("left", "cancelled")
        tested.queue.disconnect("by chance")
        late = tested.submit("late", 2, deadline=0.0)
        tested.queue.end_late()
        assert tested.worker().has == []
        for stream, reason in ((left, "cancelled"), (late, "deadline")):
            assert (await stream.output()).outputs[0].stop_reason == reason

    run(test)


def test_suspects_run_one_at_a_time_and_fail_at_a_second_death() -> None:
    async def test(tested: QueueUnderTest) -> None:
        tested.worker()
        for name, token in (("good", 1), ("bad", 2)):
            tested.submit(name, token)
        tested.begin("good", "bad")
        tested.queue.disconnect("by one of them")
        again = tested.submit("good again", 1), tested.submit("bad again", 2)
        other = tested.submit("other", 3)
        worker = tested.worker()
        assert worker.has == ["good again", "other"]
        tested.end("good again")
        assert (await again[0].output()).finished
        assert worker.has == ["good again", "other", "bad again"]
        twin = tested.submit("bad twin", 2)
        tested.begin("other", "bad again")
        tested.queue.disconnect("by the same")
        with pytest.raises(WorkerDiedError):
            await other.output()
        with pytest.raises(UsageError, match="twice"):
            await twin.output()  # it only waited
        with pytest.raises(UsageError, match=r"twice; .* again in 60 s"):
            tested.submit("bad once more", 2)
        tested.submit("good once more", 1)
        assert tested.worker().has == ["good once more"]
        tested.now = 60
        tested.submit("bad in time", 2)

    run(test)


def test_a_cancelled_suspect_stays_one_and_the_next_may_run() -> None:
    async def test(tested: QueueUnderTest) -> None:
        tested.worker()
        tested.submit("a", 1)
        tested.submit("b", 2)
        tested.begin("a", "b")
        tested.queue.disconnect("by one of them")
        tested.submit("a again", 1)
        tested.submit("b again", 2)
        worker = tested.worker()
        tested.end("a again", "abort")
        assert worker.has == ["a again", "b again"]
        tested.submit("a once more", 1)
        assert worker.has == ["a again", "b again"]

    run(test)


def test_a_worker_counts_as_silent_only_with_requests() -> None:
    async def test(tested: QueueUnderTest) -> None:
        assert tested.queue.seconds_silent == 0
        tested.worker()
        assert tested.queue.seconds_silent == 0
        tested.submit("a", 1)
        assert tested.queue.seconds_silent > 0
        tested.end("a")
        assert tested.queue.seconds_silent == 0

    run(test)


def test_two_deaths_make_poison_unless_a_success_comes_between() -> None:
    suspects = Suspects(timeout=60)
    suspects.blame(["a", "b", "b"])
    assert suspects.has("b")
    assert not suspects.is_poison("b")
    suspects.clear("a")
    suspects.blame(["a", "b"])
    assert [suspects.is_poison(one) for one in "abc"] == [False, True, False]


def test_poison_expires_and_one_more_death_renews_it() -> None:
    now = 0.0
    suspects = Suspects(timeout=60, clock=lambda: now)
    suspects.blame(["a"])
    now = 50
    suspects.blame(["a"])
    assert suspects.seconds_left("a") == 60
    now = 109
    assert suspects.is_poison("a")
    now = 110
    assert (suspects.is_poison("a"), suspects.has("a")) == (False, True)
    suspects.blame(["a"])
    assert suspects.is_poison("a")
    now = 170
    assert not suspects.is_poison("a")
    now = 230
    assert not suspects.has("a")
    assert (bool(suspects), len(suspects)) == (False, 0)


def test_suspects_remember_the_latest_4096_requests() -> None:
    suspects = Suspects(timeout=60)
    suspects.blame(["poison"])
    for number in range(3):
        suspects.blame(["poison", *(f"{number}-{index}" for index in range(2000))])
    assert len(suspects) == 4096
    assert suspects.is_poison("poison")
