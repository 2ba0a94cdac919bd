"""Parts of worker processes: messages, restarts, and shares of a machine."""

from __future__ import annotations

import asyncio
import errno
import math
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from skipdec import CapacityError, SamplingParams, SkipDecError, UsageError
from skipdec.engines.backends.session import open_backend
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.memory import HostMemory
from skipdec.runtime.generator import Generator
from skipdec.runtime.kv.buffers import KVLayout
from skipdec.runtime.kv.limits import Limits
from skipdec.runtime.kv.plans import SlotMemory
from skipdec.runtime.requests.request import Request
from skipdec.runtime.requests.score_request import ScoreRequest
from skipdec.runtime.scheduling.stats import Distribution, EngineStats
from skipdec.runtime.serving.messages import (
    Begun,
    Cancellation,
    Refused,
    ServedRequest,
    StepResult,
)
from skipdec.runtime.serving.process import settings as settings_module
from skipdec.runtime.serving.process.link import (
    Link,
    Loaded,
    Logged,
    Message,
    decode,
    encode,
    in_parts,
)
from skipdec.runtime.serving.process.settings import RestartPolicy, WorkerSettings
from skipdec.runtime.serving.process.supervisor import Deaths
from skipdec.runtime.serving.queue import RequestQueue
from skipdec.runtime.serving.stream import RequestStream, ScoreFuture
from skipdec.runtime.tokens.outputs import (
    CompletionOutput,
    Logprob,
    RequestOutput,
    ScoreOutput,
    StreamDelta,
    Timings,
)

STATS = EngineStats(
    requests=3,
    running=2,
    waiting=1,
    submitted=9,
    finished=4,
    aborted=1,
    failed=1,
    reserved_bytes=10,
    prefix_bytes=4,
    limit_bytes=20,
    prompt_tokens=5,
    prefix_tokens=2,
    generated_tokens=6,
    steps=7,
    step_rows=8,
    step_depth=11.5,
    layer_calls=(7, 3),
    layer_rows=(8, 3),
    prefill_seconds=0.5,
    decode_seconds=1.5,
    sampling_seconds=0.25,
    histograms={"step_rows": Distribution((1, 2), (3, 4, 0), 11.0)},
)
LIMITS = Limits(2, 64, 1 << 20, prefill_tokens=32, kv_buckets=(64,), capacity=64)
MEMORY = SlotMemory(LIMITS, KVLayout(4, 8, "float32"), 6)
LOGPROBS = ({5: Logprob(-math.inf, 1, "\u2028\n"), 6: Logprob(-0.5)},)
DELTA = StreamDelta(0, 1, (5,), "é\n\u2028", "stop", 3, LOGPROBS, "x")
COMPLETION = CompletionOutput(0, "x", (5,), -0.5, LOGPROBS, timings=Timings(0.5, (0.25,)))
OUTPUT = RequestOutput("a", None, (1, 2), (COMPLETION,), True, "2x", {12: ((0, 0), (2, 12))})


def served(**params: object) -> ServedRequest:
    request = Request(0, None, (5, 6), SamplingParams(**params), 16)  # type: ignore[arg-type]
    return ServedRequest("a", request, "full", 12.5)


@pytest.mark.parametrize(
    "message",
    [
        served(stop=["\n", "é"], seed=2**63, logprobs=3, temperature=0),
        served(top_k=2**63 - 1),
        Cancellation("a", "cancelled"),
        Refused.of(CapacityError("prompt", "one\n", "two"), "a"),
        Begun(("a", "b")),
        StepResult([("a", DELTA)], [OUTPUT], stats=STATS),
        Loaded("digest", STATS, MEMORY),
        Logged(40, "skipdec", "Traceback:\n  line"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_round_trips(message: Message) -> None:
    assert decode(encode(message)[:-1]) == message


@pytest.mark.parametrize("data", [b"", b"Pickle gASVCg==", b"Begun [", b'Begun {"request_ids": 3}'])
def test_an_invalid_message_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"message|Begun"):
        decode(data)


@pytest.mark.parametrize(
    "error",
    [
        CapacityError("prompt", "one", "two"),
        SkipDecError("a", "b"),
        TimeoutError("late"),
        OSError("a library's, without a number"),
        OSError(errno.ENOSPC, "full", "weights.bin"),
        MemoryError("too little"),
    ],
)
def test_an_error_round_trips(error: Exception) -> None:
    found = Refused.of(error).sent.error()
    assert (type(found), str(found)) == (type(error), str(error))


def test_a_librarys_error_becomes_its_base_and_a_text_is_never_empty() -> None:
    class LibraryError(OSError):
        pass

    for error, kind in ((LibraryError("x"), OSError), (MemoryError(), MemoryError)):
        found = Refused.of(error).sent.error()
        assert type(found) is kind
        assert str(found)


@pytest.mark.parametrize("logprobs", [None, 0, 20])
def test_log_probabilities_are_sent_once_and_in_parts(logprobs: int | None) -> None:
    def entries(count: int) -> tuple[dict[int, Logprob], ...] | None:
        if logprobs is None:
            return None
        ids = range(logprobs + 1)
        return tuple({token: Logprob(-token - place, 1) for token in ids} for place in range(count))

    of_text, top = entries(96), entries(2048)
    deltas = [
        ("a", StreamDelta(0, place % 2, (5,), "x", None, 3, of_text and of_text[place : place + 1]))
        for place in range(96)
    ]
    outputs = tuple(
        CompletionOutput(index, "x", (5,) * 48, logprobs=of_text and of_text[index::2])
        for index in range(2)
    )
    output = RequestOutput("a", None, (1,), outputs, finished=True)
    score = ScoreOutput((1,), (2,) * 2048, (-1.0,) * 2048, (3,) * 2048, "full", top)
    sent = [encode(one)[:-1] for one in in_parts(StepResult(deltas, [output], [("b", score)]))]
    assert max(map(len, sent)) < 100_000

    async def main() -> list[object]:
        queue = RequestQueue("test", 9)
        queue.connect(lambda message: None)
        params = SamplingParams(n=2, logprobs=logprobs)
        stream = RequestStream(
            ServedRequest("a", Request(0, None, (1,), params, 48), "full"), num_layers=6
        )
        text = ScoreRequest(0, (1,), (2,) * 2048, top_logprobs=logprobs)
        future = ScoreFuture(ServedRequest("b", text, "full"))
        for pending in (stream, future):
            queue.admit(pending, retry_after=lambda: 1.0)
        for message in map(decode, sent):
            assert isinstance(message, StepResult)
            queue.take(message)
        return [*await stream.read(), await stream.output(), await future.output()]

    assert asyncio.run(main()) == [*(delta for _, delta in deltas), output, score]


def test_a_requests_content_ignores_its_id_and_client() -> None:
    first, second = served(seed=1), served(seed=1)
    renamed = replace(second, request_id="b", request=replace(second.request, client="b"))
    assert first.content() == renamed.content() != served(seed=2).content()


def test_a_closed_link_raises_eof_even_within_a_message() -> None:
    ours, theirs = socket.socketpair()
    link, other = Link(ours), Link(theirs)
    assert link.receive(timeout=0) is None
    other.send(Begun(("a",)))
    assert link.receive(timeout=60) == Begun(("a",))
    other.close()
    with pytest.raises(EOFError):
        link.receive()
    link.send(Begun(()))  # without a receiver, send does nothing
    link.close()
    ours, theirs = socket.socketpair()
    theirs.sendall(b"Begun")
    theirs.close()
    with pytest.raises(EOFError):
        Link(ours).receive()


@pytest.mark.parametrize(
    ("times", "delays"),
    [
        ([0, 10, 400, 410], [0.0, 1.0, 0.0, 1.0]),
        ([0, 1, 2, 3], [0.0, 1.0, 4.0, None]),
        ([0, 100, 200, 300, 301], [0.0, 1.0, 4.0, 4.0, None]),
    ],
)
def test_restarts_are_delayed_ever_longer_and_then_stop(
    times: list[float], delays: list[float | None]
) -> None:
    deaths = Deaths(RestartPolicy())
    assert [deaths.delay_after(time) for time in times] == delays


@pytest.mark.parametrize(
    ("threads", "workers", "shares"), [(5, 2, [3, 2]), (1, 3, [1, 1, 1]), (None, 2, [4, 4])]
)
def test_workers_share_threads(
    threads: int | None, workers: int, shares: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from skipdec.engines.host import processor

    for module in (processor, settings_module):
        monkeypatch.setattr(module, "available_cores", lambda: 8)
    made = [
        WorkerSettings(path=Path(), threads=threads, worker=place, workers=workers)
        for place in range(workers)
    ]
    assert [one.process_threads for one in made] == shares


@pytest.mark.parametrize("kv_memory", [None, 1_000_000])
def test_workers_share_kv_memory(
    bundle: Path, kv_memory: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostMemory, "available_bytes", lambda memory: 1_000_000)

    def limit(workers: int) -> int:
        worker_settings = WorkerSettings(path=bundle, kv_memory=kv_memory, workers=workers)

        def load(opened: EngineBundle) -> Generator:
            backend = open_backend(opened.manifest.target, threads=1)
            return Generator(opened, backend, worker_settings.own_options())

        with EngineBundle.load(bundle, load) as generator:
            return generator.kv_memory.limit

    assert [limit(workers) for workers in (1, 3)] == [1_000_000, 333_333]


def test_settings_round_trip_and_are_checked() -> None:
    made = WorkerSettings(path=Path("a"), threads=1, kv_memory="1MiB", workers=2)
    assert WorkerSettings.from_json(made.to_json()) == made
    with pytest.raises(UsageError, match="admission"):
        WorkerSettings(path=Path("a"), admission="best")


def test_figures_of_workers_add_up_and_outlive_them() -> None:
    total = EngineStats.total([STATS, STATS])
    assert (total.running, total.layer_calls, total.decode_seconds) == (4, (14, 6), 3.0)
    assert total.histograms == {"step_rows": Distribution((1, 2), (6, 8, 0), 22.0)}
    ended = STATS.ended(lost=2)
    assert (ended.running, ended.prefix_bytes, ended.failed) == (0, 0, 3)
    assert ended.submitted == ended.finished + ended.aborted + ended.failed
