"""Requests are scheduled by client: the API key if keys are needed, else the address."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from http_servers import ROWS, Running, held_steps, serving

from skipdec.runtime.serving.async_engine import AsyncEngine
from skipdec.runtime.serving.http.server import ServedBundle
from skipdec.runtime.serving.messages import ServedRequest
from skipdec.runtime.serving.stream import RequestStream

LONG: dict[str, Any] = {"prompt": "a", "max_tokens": 20, "ignore_eos": True}
SCORED: dict[str, Any] = {"prompt": "ab", "echo": True, "logprobs": 0, "max_tokens": 0}
RUNNING = 'skipdec_requests_running{model="tiny"}'
WAITING = 'skipdec_requests_waiting{model="tiny"}'


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the client names of requests in order of their arrival at the engine."""
    names: list[str] = []

    original = AsyncEngine.require_possible

    def noted(engine: AsyncEngine, served: ServedRequest) -> None:
        names.append(served.request.client)
        original(engine, served)

    monkeypatch.setattr(AsyncEngine, "require_possible", noted)
    return names


def ask(running: Running, key: str, **fields: object) -> int:
    headers = {"Authorization": f"Bearer {key}"}
    return running.http.post("/v1/completions", json=fields, headers=headers).status_code


@pytest.mark.parametrize("fields", [LONG, SCORED], ids=["text", "scored"])
def test_requests_of_one_key_have_the_same_client_name(
    bundle: Path, tmp_path: Path, clients: list[str], fields: dict[str, Any]
) -> None:
    (tmp_path / "keys").write_text("first\nsecond\n")
    with serving(ServedBundle("tiny", bundle), api_key_file=tmp_path / "keys") as running:
        for key in ("first", "second", "first"):
            assert ask(running, key, **fields) == 200
        assert ask(running, "third", **fields) == 401
    assert len(clients) == 3
    assert clients[0] == clients[2] != clients[1]
    assert "first" not in clients[0]  # names may be shown, keys may not


def test_without_keys_a_client_cannot_choose_its_name(bundle: Path, clients: list[str]) -> None:
    with serving(ServedBundle("tiny", bundle)) as running:
        for key in ("anything", "else"):
            assert ask(running, key, user=key, **LONG) == 200
        for address in ("10.0.0.1", "10.0.0.2"):
            headers = {"X-Forwarded-For": address}
            assert running.complete(headers=headers, **LONG).status_code == 200
    assert clients == ["127.0.0.1"] * 4


def test_a_second_client_does_not_wait_for_all_of_the_first(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys").write_text("greedy\nother\n")
    ended: list[
        str | None
    ] = []  # prompts in the engine's order, as answers may overtake each other
    finish = RequestStream.finish

    def noted(stream: RequestStream, *args: Any, **options: Any) -> None:  # noqa: ANN401
        ended.append(stream.prompt)
        finish(stream, *args, **options)

    monkeypatch.setattr(RequestStream, "finish", noted)
    with (
        serving(ServedBundle("tiny", bundle), api_key_file=tmp_path / "keys") as running,
        ThreadPoolExecutor(8) as pool,
    ):
        with held_steps():
            sent = [pool.submit(ask, running, "greedy", **LONG) for _ in range(7)]
            running.wait_until(lambda figures: figures[WAITING] + figures[RUNNING] == 7)
            sent.append(pool.submit(ask, running, "other", **LONG | {"prompt": "b"}))
            running.wait_until(lambda figures: figures[WAITING] + figures[RUNNING] == 8)
        assert [one.result(60) for one in sent] == [200] * 8
    assert ended.index("b") <= 2 * ROWS  # those running, and as many beside it
