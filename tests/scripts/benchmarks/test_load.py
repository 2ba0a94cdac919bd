"""The load generator's clients see what the service sent, over every protocol."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path

import pytest
from benchmarks.load.arrivals import Arrivals, ClosedLoop, Poisson, Result
from benchmarks.load.client import RequestFailed
from benchmarks.load.engine import EngineClient
from benchmarks.load.figures import Figures, Objectives
from benchmarks.load.lengths import WORKLOADS
from benchmarks.load.openai import OpenAIClient
from benchmarks.load.requests import LoadRequest, drawn, impatient, read
from http_servers import Running, export_tiny, serving
from text_bundles import STRUCTURE

from skipdec import AsyncEngine
from skipdec.engines.errors import UsageError
from skipdec.runtime.serving.http.server import ServedBundle

REQUESTS = [LoadRequest((5, 6, 7), 9), LoadRequest("Ant", 1), LoadRequest((5,), 4, "full")] * 2
SCRIPT = Path(__file__).parents[3] / "scripts" / "bench.py"


@pytest.fixture(scope="module")
def bundle(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_tiny(checkpoint(STRUCTURE), tmp_path_factory.mktemp("load"))


@pytest.fixture(scope="module")
def server(bundle: Path) -> Iterator[Running]:
    with serving(ServedBundle("tiny", bundle)) as running:
        yield running


@pytest.mark.parametrize("arrivals", [ClosedLoop(3), Poisson(200.0)])
def test_every_request_is_sent_and_every_token_counted(server: Running, arrivals: Arrivals) -> None:
    before = server.figures()
    results = asyncio.run(arrivals.send(OpenAIClient(server.url), iter(REQUESTS)))
    sent = server.figures()["skipdec_generation_tokens_total" + '{model="tiny"}']
    assert [result.error for result in results] == [None] * len(REQUESTS)
    assert sum(result.tokens for result in results) == 2 * (9 + 1 + 4)
    assert sent - before["skipdec_generation_tokens_total" + '{model="tiny"}'] == 28


def test_an_engine_is_a_client_and_drops_cancelled_requests(bundle: Path) -> None:
    async def run() -> list[Result]:
        async with AsyncEngine.open(bundle, threads=1, max_batch_size=2) as engine:
            requests = impatient(iter([LoadRequest((5, 6, 7), 30)] * 12), 0.5, 0)
            results = await ClosedLoop(3).send(EngineClient(engine), requests)
            assert await engine.drain(60)
            stats = engine.stats()
            assert stats.submitted == 12 == stats.finished + stats.aborted
            assert stats.reserved_bytes == 0
            return results

    results = asyncio.run(run())
    assert 2 < sum(result.left for result in results) < 10
    assert all(result.tokens == result.asked_tokens for result in results if not result.left)
    assert all(result.tokens < result.asked_tokens for result in results if result.left)


@pytest.mark.parametrize(
    ("request_", "address", "error"),
    [
        (LoadRequest((5,), 1000), None, "status 400"),
        (LoadRequest((5,), 1, "3y"), None, "status 400"),
        (LoadRequest((5,), 1), "http://127.0.0.1:1", "no connection"),
    ],
)
def test_errors_are_counted_by_kind(
    server: Running, request_: LoadRequest, address: str | None, error: str
) -> None:
    client = OpenAIClient(address or server.url)
    (result,) = asyncio.run(ClosedLoop(1).send(client, iter([request_])))
    assert result.error is not None
    assert result.error.startswith(error)
    figures = Figures.of([result], Objectives())
    assert dict(figures.errors) == {result.error: 1}
    assert math.isnan(figures.ttft["p50"])


@pytest.mark.parametrize("cut", [1, 7, 1000])
def test_events_are_read_however_the_body_is_cut(cut: int) -> None:
    choices = [{"choices": [{"finish_reason": None, "layers_per_token": [6] * n}]} for n in (1, 3)]
    body = b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in choices)
    body += b"data: [DONE]\n\n"
    pieces = [body[place : place + cut] for place in range(0, len(body), cut)]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in [*pieces, b""]:
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        writer.close()

    async def run() -> list[Result]:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            client = OpenAIClient(f"http://127.0.0.1:{port}")
            return await ClosedLoop(1).send(client, iter([LoadRequest("a", 4)]))

    (result,) = asyncio.run(run())
    assert result.error is None
    assert [tokens for _, tokens in result.events] == [1, 3]


def test_times_count_from_when_a_request_was_due_and_gaps_are_of_tokens() -> None:
    result = Result(due=1.0, asked_tokens=4, events=[(1.5, 1), (1.7, 3)], end=1.7)
    assert result.time_to_first_token == pytest.approx(0.5)
    assert result.gaps == pytest.approx([0.2, 0, 0])
    figures = Figures.of([result], Objectives(ttft=500.1, gap=66.7))
    assert figures.goodput == pytest.approx(1 / 0.7)
    assert Figures.of([result], Objectives(gap=66.6)).goodput == 0
    assert figures.tokens_per_second == pytest.approx(4 / 0.7)


def test_an_open_loop_does_not_wait_for_answers() -> None:
    running = 0

    class Patient:
        @asynccontextmanager
        async def stream(self, request: LoadRequest) -> AsyncIterator[AsyncIterator[int]]:
            nonlocal running
            running += 1
            if running == 3:
                everyone.set()
            yield self.events()

        async def events(self) -> AsyncIterator[int]:
            await everyone.wait()
            raise RequestFailed("never mind")
            yield

    async def run() -> list[Result]:
        return await Poisson(1000.0).send(Patient(), iter(REQUESTS[:3]))

    everyone = asyncio.Event()
    assert [result.error for result in asyncio.run(run())] == ["never mind"] * 3


def test_the_same_seed_draws_the_same_requests_of_the_right_lengths() -> None:
    first, again = (
        list(islice(drawn(WORKLOADS["tail"], seed=3, vocab_size=90), 400)) for _ in range(2)
    )
    assert first == again
    prompts = [len(request.prompt) for request in first]
    assert 100 < sum(prompts) / 400 < 155
    assert 50 < sorted(request.max_tokens for request in first)[200] < 80
    assert max(token for request in first for token in request.prompt) < 90


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{}", "line 1 | prompt and prompt_token_ids and messages are missing"),
        ('{"prompt": "a", "max_tokens": 0}', "line 1 | max_tokens is 0"),
        ('\n{"prompt": "a", "max_token": 2}', "line 2 | 'max_token' is unknown; did you mean"),
        ('{"prompt": ""}', "prompt is ''; allowed: a text"),
        ('{"prompt": [5, "6"]}', "line 1 | prompt is"),
        ('{"prompt": "a", "stop": "x"}', "stop can't be part of a load"),
        ('{"prompt": "a", "max_tokens": null}', "max_tokens is null"),
        ("", "no request"),
    ],
)
def test_a_file_of_requests_is_checked_before_any_is_sent(
    tmp_path: Path, line: str, problem: str
) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(line)
    with pytest.raises(UsageError, match=problem):
        next(read(path))


def test_request_lines_use_the_format_of_generate(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(
        '{"id": "a", "prompt": "Ant"}\n'
        '{"prompt_token_ids": [5], "max_tokens": 2, "top_p": 0.5, "schedule": "full"}\n'
    )
    greedy = {"temperature": 0.0, "ignore_eos": True}
    assert list(islice(read(path, "2x"), 3)) == [
        LoadRequest("Ant", 16, "2x"),
        LoadRequest((5,), 2, "full", sampling=greedy | {"top_p": 0.5}),
        LoadRequest("Ant", 16, "2x"),
    ]


def test_the_script_prints_a_table_and_writes_json(server: Running, tmp_path: Path) -> None:
    path, figures = tmp_path / "requests.jsonl", tmp_path / "figures.json"
    path.write_text('{"prompt": "Ant", "max_tokens": 3}\n{"prompt": [5, 6], "max_tokens": 2}\n')
    command = [sys.executable, str(SCRIPT), "load", "openai", server.url, "--file", str(path)]
    command += ["--requests", "4", "--clients", "2", "--json", str(figures)]
    done = subprocess.run([*command, "--slo", "ttft:60000"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "| time to first token |" in done.stdout
    document = json.loads(figures.read_text())
    assert document["whole"] == 4
    assert document["goodput"] == document["requests_per_second"]
