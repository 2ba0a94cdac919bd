"""A server tells its clients when its worker process dies, hangs or restarts."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from http_servers import Running, connected, serving
from steered_worker import DIE, HOLD, STUCK
from workers import AT_ONCE, steered

from skipdec import SkipDecError
from skipdec.runtime.serving.http.config import ServerConfig
from skipdec.runtime.serving.http.server import HttpServer, ServedBundle
from skipdec.runtime.serving.process.engine import ProcessEngine
from skipdec.runtime.serving.process.settings import RestartPolicy

pytestmark = pytest.mark.slow  # each test starts processes

LONG: dict[str, Any] = {"prompt": "a", "max_tokens": 50, "ignore_eos": True, "temperature": 0}
RUNNING = 'skipdec_requests_running{model="tiny"}'
WAITING = 'skipdec_requests_waiting{model="tiny"}'


def in_process(
    policy: RestartPolicy = AT_ONCE, **options: object
) -> Callable[[ServedBundle], AbstractAsyncContextManager[ProcessEngine]]:
    return lambda bundle: steered(bundle.path, policy, **options)


@contextmanager
def served(bundle: Path, **config: object) -> Iterator[Running]:
    tiny = ServedBundle("tiny", bundle)
    with serving(tiny, open_engine=in_process(), **config) as running:
        yield running


def kill_worker(running: Running) -> None:
    engine = running.server.models.loaded["tiny"].engine
    assert isinstance(engine, ProcessEngine)
    assert engine.worker_pid is not None
    os.kill(engine.worker_pid, signal.SIGKILL)


def events(answer: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_a_death_fails_running_requests_and_delays_waiting_ones(bundle: Path) -> None:
    with served(bundle) as running, ThreadPoolExecutor() as pool:
        alone = running.complete(**LONG).json()["choices"][0]["text"]
        ran = [
            pool.submit(running.complete, **LONG | {"prompt": [HOLD, index], "stream": index == 1})
            for index in range(2)
        ]
        running.wait_until(lambda figures: figures[RUNNING] == 2)
        waited = pool.submit(running.complete, **LONG)
        running.wait_until(lambda figures: figures[WAITING] == 1)
        kill_worker(running)
        running.wait_until(lambda figures: figures[RUNNING] == 0)
        assert "loading again" in running.http.get("/health/ready").text
        assert running.http.get("/health/live").status_code == 200
        answers = [one.result(60) for one in ran]
        assert answers[0].status_code == 500
        last = events(answers[1])[-1]["error"]
        for error in (answers[0].json()["error"], last):
            assert error["code"] == "engine_failed"
            assert error["message"].startswith("worker: died while the text ran")
        assert waited.result(60).json()["choices"][0]["text"] == alone
        assert running.http.get("/health/ready").status_code == 200


def test_a_poisoned_request_is_answered_400_with_the_reason(bundle: Path) -> None:
    with served(bundle) as running:
        poison = LONG | {"prompt": [DIE, 5]}
        assert [running.complete(**poison).status_code for _ in range(3)] == [500, 500, 400]
        error = running.complete(**poison).json()["error"]
        assert (error["param"], error["type"]) == ("prompt", "invalid_request_error")
        assert "running when a worker died" in error["message"]
        assert running.complete(**LONG).status_code == 200


def test_a_worker_that_dies_too_often_ends_the_server(bundle: Path) -> None:
    none = RestartPolicy(max_deaths=0)
    server = HttpServer([ServedBundle("tiny", bundle)], in_process(none), ServerConfig(port=0))
    server.listen()
    running = Running(server)
    with ThreadPoolExecutor() as pool:
        ended = pool.submit(server.run)
        running.wait_for(lambda: running.http.get("/health/ready").status_code == 200)
        kill_worker(running)
        with pytest.raises(SkipDecError, match=r"tiny \| has failed: .*died 1 times in 300 s"):
            ended.result(60)
    running.http.close()


def test_a_hung_step_makes_the_server_not_live(bundle: Path) -> None:
    with served(bundle, hang_timeout=0.2, shutdown_timeout=0.0) as running:
        assert running.http.get("/health/live").status_code == 200
        with ThreadPoolExecutor() as pool:
            pending = pool.submit(running.complete, **LONG | {"prompt": [STUCK]})
            running.wait_for(lambda: running.http.get("/health/live").status_code != 200)
            assert not pending.done()
            answer = running.http.get("/health/live")
            assert (answer.status_code, answer.json()["error"]["code"]) == (500, "not_live")
            running.server.stop()
            assert pending.result(60).json()["error"]["code"] == "unavailable"


def test_a_client_that_reads_nothing_delays_no_other(bundle: Path) -> None:
    # 5 MB, more than the system buffers for a socket.
    much = LONG | {"prompt": ["a"] * 60, "n": 2, "temperature": 1, "logprobs": 20, "stream": True}
    body = json.dumps(much | {"model": "tiny"}).encode()
    disconnected = 'skipdec_request_failed_total{model="tiny",reason="disconnected"}'
    tiny = ServedBundle("tiny", bundle)
    with serving(tiny, open_engine=in_process(max_batch_size=16)) as running:
        with connected(running, receive_buffer=4096) as slow:
            lines = ("POST /v1/completions HTTP/1.1", "Host: a", f"Content-Length: {len(body)}")
            slow.sendall("\r\n".join((*lines, "", "")).encode() + body)
            running.wait_until(lambda figures: figures[RUNNING] > 0)
            assert running.complete(**LONG).json()["choices"][0]["finish_reason"] == "length"
            running.wait_until(lambda figures: figures[RUNNING] == figures[WAITING] == 0)
        running.wait_until(lambda figures: disconnected in figures)
