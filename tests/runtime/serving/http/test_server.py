"""The server around the endpoints has keys, limits, health, metrics, logs and a shutdown."""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import openai
import pytest
from http_servers import ROWS, Running, held_steps, in_thread, logged, open_tiny, serving
from text_bundles import STRUCTURE

from skipdec.engines.errors import BundleError, UsageError
from skipdec.runtime.generator import Generator
from skipdec.runtime.schedule.text import parse_schedule
from skipdec.runtime.serving.http.config import ServerConfig
from skipdec.runtime.serving.http.logs import REQUESTS, JsonFormatter
from skipdec.runtime.serving.http.server import HttpServer, ServedBundle

LONG: dict[str, Any] = {"prompt": "a", "max_tokens": 50, "ignore_eos": True}  # many steps
RUNNING = 'skipdec_requests_running{model="tiny"}'
WAITING = 'skipdec_requests_waiting{model="tiny"}'


@pytest.fixture
def tiny(bundle: Path) -> ServedBundle:
    return ServedBundle("tiny", bundle)


def test_models_schedules_and_version_are_listed(server: Running) -> None:
    (model,) = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none").models.list().data
    assert model.id == "tiny"
    assert server.http.get("/v1/models/tiny").json()["chat"] is False
    (listed,) = server.http.get("/v1/schedules").json()["data"]
    assert [entry["schedule"] for entry in listed["allowed"]] == ["full", listed["default"]]
    assert listed["allowed"][0]["layers_per_token"] == [6] * 64
    assert listed["allowed"][1]["layers_per_token"][:5] == [4, 3, 3, 2, 2]
    assert server.http.get("/version").json().keys() == {"version"}
    assert server.http.get("/health/live").status_code == 200
    assert server.http.get("/health").json() == server.http.get("/health/live").json()


@pytest.mark.parametrize("path", ["/health/live", "/metrics", "/v1/models", "/nothing"])
def test_head_is_answered_as_get_without_a_body(server: Running, path: str) -> None:
    head, get = server.http.head(path), server.http.get(path)
    assert (head.status_code, head.content) == (get.status_code, b"")
    assert head.headers["content-type"] == get.headers["content-type"]


@pytest.mark.parametrize("given", [("3x",), ("3x", "any"), ("full",)])
def test_full_and_the_bundles_own_schedule_are_always_allowed(
    tiny: ServedBundle, given: tuple[str, ...]
) -> None:
    with serving(tiny, schedules=given) as running:
        (listed,) = running.http.get("/v1/schedules").json()["data"]
        texts = [entry["schedule"] for entry in listed["allowed"]]
        added = [text for text in given if text not in ("any", "full")]
        assert texts == ["full", listed["default"], *added]
        assert listed["any"] == ("any" in given)
        for text in texts:
            answer = running.complete(prompt="a", max_tokens=1, schedule=text)
            assert answer.status_code == 200
        refused = running.complete(prompt="a", max_tokens=1, schedule="3x:horizon=9")
        assert refused.status_code == (200 if "any" in given else 400)


def test_a_schedule_for_long_texts_only_is_listed_and_runs(
    exported: Callable[..., Path],
) -> None:
    tiny = ServedBundle("tiny", exported(STRUCTURE))
    steps = "step:max=6,min=2,steps=20"  # for texts of 20 tokens or more

    def opened(path: Path) -> Generator:
        return Generator.open(path, threads=1, max_batch_size=ROWS, schedule=steps)

    with serving(tiny, open_engine=in_thread(opened), schedules=(steps,)) as running:
        assert "steps=20" in running.http.get("/v1/models").json()["data"][0]["schedule"]
        (listed,) = running.http.get("/v1/schedules").json()["data"]
        assert [entry["schedule"] for entry in listed["allowed"]][-1] == steps
        for schedule_text, status in ((steps, 200), ("full", 200), ("3x", 400)):
            answer = running.complete(prompt=[5], max_tokens=24, schedule=schedule_text)
            assert answer.status_code == status
        refused = running.complete(prompt=[5], max_tokens=9, schedule="3x")
        assert "not allowed" in refused.json()["error"]["message"]


def test_a_model_name_may_have_a_slash(tiny: ServedBundle) -> None:
    with serving(ServedBundle("org/tiny", tiny.path)) as running:
        client = openai.OpenAI(base_url=f"{running.url}/v1", api_key="none")
        assert client.models.retrieve("org/tiny").id == "org/tiny"
        assert running.http.get("/v1/models/org/tiny").json()["id"] == "org/tiny"
        assert "/v1/models/{name}" in running.http.get("/openapi.json").json()["paths"]


def test_schedule_files_are_read_at_the_start(tiny: ServedBundle, tmp_path: Path) -> None:
    texts, files = [f"linear:max={most},min=3,warmup=1,horizon=9" for most in (5, 4)], []
    for index, text in enumerate(texts):
        files.append(tmp_path / f"{index}.json")
        document = parse_schedule(text, num_layers=6).to_document()
        files[-1].write_text(json.dumps(document))

    def opened(path: Path) -> Generator:
        return Generator.open(path, threads=1, max_batch_size=ROWS, schedule=f"{files[0]}")

    with serving(tiny, open_engine=in_thread(opened), schedules=(f"{files[1]}",)) as running:
        for file in files:
            file.unlink()
        (model,) = running.http.get("/v1/models").json()["data"]
        (listed,) = running.http.get("/v1/schedules").json()["data"]
        assert model["schedule"] == listed["default"] == texts[0]
        assert [one["schedule"] for one in listed["allowed"]][2:] == [texts[1]]
        for text in (None, *texts):
            answer = running.complete(prompt="a", max_tokens=1, schedule=text).json()
            assert answer["choices"][0]["schedule"] == (text or texts[0])
        refused = running.complete(prompt="a", max_tokens=1, schedule=f"{files[1]}")
        assert refused.json()["error"]["param"] == "schedule"


def test_the_page_is_self_contained_and_its_policy_enforces_it(server: Running) -> None:
    answer = server.http.get("/")
    (script,) = re.findall(r"<script>(.*?)</script>", answer.text, re.DOTALL)
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = answer.headers["content-security-policy"]
    assert f"script-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    assert not re.search(r"https?://|\ssrc=|\sstyle=|\son\w+=", answer.text)


def test_only_listed_keys_are_accepted(
    tiny: ServedBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKIPDEC_API_KEY", "from-environment")
    (tmp_path / "keys").write_text("# ours\nfirst\nsecond\n")
    with serving(tiny, api_key_file=tmp_path / "keys", protect_metrics=True) as running:
        for key in ("first", "second", "from-environment"):
            client = openai.OpenAI(base_url=f"{running.url}/v1", api_key=key)
            assert client.models.list().data
        for header in ({}, {"Authorization": "Bearer third"}, {"Authorization": "Basic first"}):
            for path in ("/v1/models", "/metrics"):
                answer = running.http.get(path, headers=header)
                assert (answer.status_code, answer.json()["error"]["type"]) == (
                    401,
                    "authentication_error",
                )
        assert running.http.get("/health/live").status_code == 200


def test_a_full_queue_is_answered_429_and_openais_client_retries(tiny: ServedBundle) -> None:
    with serving(tiny, open_engine=in_thread(max_waiting=1)) as running:
        client = openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=5)
        body: dict[str, Any] = {"model": "tiny", "prompt": "a", "max_tokens": 2}
        with ThreadPoolExecutor() as pool:
            with held_steps():
                accepted = [pool.submit(running.complete, **LONG)]
                running.wait_until(lambda figures: figures[RUNNING] == 1)
                accepted.append(pool.submit(running.complete, **LONG))
                running.wait_until(lambda figures: figures[WAITING] == 1)
                refused = running.complete(**LONG)
                retried = pool.submit(lambda: client.completions.create(**body))
                failed = 'skipdec_request_failed_total{model="tiny",reason="queue_full"}'
                running.wait_until(lambda figures: figures[failed] == 2)
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error"]["code"] == "queue_full"
            assert [answer.result(60).status_code for answer in accepted] == [200] * 2
            assert retried.result(60).choices


@pytest.mark.parametrize("scores", [{}, {"echo": True, "logprobs": 1, "max_tokens": 1}])
def test_more_prompts_than_max_waiting_are_refused(
    tiny: ServedBundle, scores: dict[str, Any]
) -> None:
    with serving(tiny, open_engine=in_thread(max_waiting=2)) as running:
        refused = running.complete(prompt=["a"] * 3, **scores)
        reason = 'skipdec_request_failed_total{model="tiny",reason="invalid_request_error"}'
        assert running.figures()[reason] == 1
    assert refused.status_code == 400
    message = "prompt: is a list of 3; allowed: max_waiting, which is 2; submit fewer, or raise it"
    error = refused.json()["error"]
    assert (error["message"], error["param"]) == (message, "prompt")


def test_metrics_count_requests_tokens_and_times(server: Running) -> None:
    before = server.figures()
    body = {"max_tokens": 4, "ignore_eos": True, "schedule": "full"}
    used = server.complete(prompt=[[5, 6, 7]], **body).json()["usage"]
    after = server.figures()
    gained = {name: value - before.get(name, 0) for name, value in after.items()}
    assert gained['skipdec_prompt_tokens_total{model="tiny"}'] == 3
    assert gained['skipdec_generation_tokens_total{model="tiny"}'] == 4
    assert gained['skipdec_request_success_total{finish_reason="length",model="tiny"}'] == 1
    assert gained['skipdec_layer_rows_total{layer="0",model="tiny"}'] == 3
    assert gained['skipdec_time_to_first_token_seconds_count{model="tiny"}'] == 1
    assert gained['skipdec_inter_token_seconds_count{model="tiny"}'] == 3
    gaps = gained['skipdec_inter_token_seconds_sum{model="tiny"}']
    assert gaps == pytest.approx(used["decode_seconds"])
    assert gained['skipdec_realised_depth_sum{model="tiny",schedule="full"}'] == 6


@pytest.mark.parametrize("path", ["/health/ready", "/nothing"])
def test_only_requests_of_the_api_count_as_failed(server: Running, path: str) -> None:
    def failed() -> dict[str, float]:
        name = "skipdec_request_failed_total"
        return {one: value for one, value in server.figures().items() if one.startswith(name)}

    before = failed()
    server.server.models.is_draining = True
    try:
        assert server.http.get(path).status_code in (503, 404)
    finally:
        server.server.models.is_draining = False
    assert failed() == before


def test_metrics_count_steps_rows_and_layers(server: Running) -> None:
    def gained(name: str) -> float:
        return after[f'skipdec_{name}{{model="tiny"}}'] - before[f'skipdec_{name}{{model="tiny"}}']

    before = server.figures()
    server.complete(prompt=[[5, 6], [7, 8]], max_tokens=4, ignore_eos=True, schedule="full")
    after = server.figures()
    assert gained("queue_seconds_count") == 2
    assert 1 <= gained("prefill_seconds_count") <= 2
    assert gained("step_seconds_count") == gained("steps_total") == gained("step_rows_count")
    assert gained("step_rows_sum") == 6
    assert gained("step_union_layers_sum") == 6 * gained("steps_total")
    assert gained("step_seconds_sum") > 0
    bounds = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, "+Inf"]
    rows = [f'skipdec_step_union_layers_bucket{{le="{one}",model="tiny"}}' for one in bounds]
    counts = [after[name] - before[name] for name in rows]
    assert counts == [0] * 5 + [gained("steps_total")] * 2


@pytest.mark.parametrize("kind", ["gauge", "counter", "histogram"])
def test_the_metrics_are_exactly_the_documented_ones(server: Running, kind: str) -> None:
    server.complete(prompt="a", max_tokens=2)
    server.complete(prompt="a", max_tokens=0)
    page = (Path(__file__).parents[4] / "docs" / "serving.md").read_text(encoding="utf-8")
    rows = re.findall(rf"^\| {kind}s.*", page, re.MULTILINE)
    documented = {
        f"skipdec_{name}" for row in rows for name in re.findall(r"`(\w+)(?:\{\w+\})?`", row)
    }
    names = re.findall(rf"^# TYPE (\w+) {kind}$", server.http.get("/metrics").text, re.MULTILINE)
    shown = {name for name in names if not name.endswith("_created")}
    assert shown == documented


def test_the_log_has_request_ids_and_never_a_prompt(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, REQUESTS.name):
        ids = ("mine-1", "mine-2")
        headers = [{"X-Request-Id": request_id} for request_id in ids]
        server.complete(prompt="secret", max_tokens=2, stop="hidden", headers=headers[0])
        server.complete(prompt="secret", temperature="hidden", headers=headers[1])
        lines = [json.loads(JsonFormatter().format(record)) for record in logged(caplog, *ids)]
    assert lines[0]["request_id"] == "mine-1"
    assert (lines[0]["status"], lines[0]["prompt_tokens"]) == (200, 7)
    assert lines[1]["status"] == 400
    assert "secret" not in json.dumps(lines)
    assert "hidden" not in json.dumps(lines)


def test_a_loading_server_serves_the_models_it_has(tiny: ServedBundle) -> None:
    may_go_on = threading.Event()

    def slowly(path: Path) -> Generator:
        if path.name == "second":
            may_go_on.wait()
            path = tiny.path
        return open_tiny(path)

    second = ServedBundle("second", tiny.path.with_name("second"))
    with serving(tiny, second, open_engine=in_thread(slowly), wait=False) as running:
        running.wait_for(lambda: running.complete(prompt="a", max_tokens=1).status_code != 503)
        ready = running.http.get("/health/ready")
        assert (ready.status_code, ready.json()["error"]["message"]) == (503, "is loading second")
        assert running.complete(model="second", prompt="a").status_code == 503
        assert running.complete(model=None, prompt="a").status_code == 404
        may_go_on.set()
        running.wait_for(lambda: running.http.get("/health/ready").status_code == 200)
        assert running.complete(model="second", prompt="a", max_tokens=1).status_code == 200


@pytest.mark.parametrize(
    ("shutdown_timeout", "reason"), [(30.0, "length"), (0.0, "unavailable")], ids=["ends", "is cut"]
)
@pytest.mark.parametrize("stream", [True, False])
def test_when_a_server_stops_a_running_text(
    tiny: ServedBundle, shutdown_timeout: float, reason: str, stream: bool
) -> None:
    with serving(tiny, shutdown_timeout=shutdown_timeout) as running, ThreadPoolExecutor() as pool:
        with held_steps():
            pending = pool.submit(running.complete, stream=stream, **LONG)
            running.wait_until(lambda figures: figures[RUNNING] == 1)
            running.server.stop()
            if not shutdown_timeout:
                pending.result(60)  # although its step hangs
            else:
                running.wait_until(lambda _: running.http.get("/health/ready").status_code == 503)
                assert running.complete(**LONG).status_code == 503
        answer = pending.result(60)
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    last = json.loads(events[-2 if stream else 0])
    if reason == "length":
        assert last["choices"][0]["finish_reason"] == reason
    else:
        assert last["error"]["code"] == reason
        assert answer.status_code == (200 if stream else 503)


def test_a_bundle_that_cannot_be_opened_ends_the_server(tmp_path: Path) -> None:
    server = HttpServer([ServedBundle("none", tmp_path)], in_thread(), ServerConfig(port=0))
    with pytest.raises(BundleError):
        server.run()


def test_a_server_stopped_before_it_runs_ends_at_once(tiny: ServedBundle) -> None:
    server = HttpServer([tiny], in_thread(), ServerConfig(port=0))
    server.stop()
    server.run()


def test_a_port_refuses_connections_at_all_addresses_of_a_host_until_the_server_listens(
    tiny: ServedBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = {"::1": socket.AF_INET6, "127.0.0.1": socket.AF_INET, "192.0.2.1": socket.AF_INET}
    found = [(family, socket.SOCK_STREAM, 6, "", (host, 0)) for host, family in hosts.items()]
    with monkeypatch.context() as resolving:
        resolving.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        server = HttpServer([tiny], in_thread(), ServerConfig(host="localhost", port=0))
    port = int(server.address.removeprefix("http://localhost:"))
    other = HttpServer([tiny], in_thread(), ServerConfig(port=port))
    for host in ("::1", "127.0.0.1"):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, port))
    server.listen()
    for host in ("::1", "127.0.0.1"):
        socket.create_connection((host, port)).close()
    with pytest.raises(UsageError, match=f"127.0.0.1:{port} can't be listened on"):
        other.run()
    server.stop()
    server.run()


def test_a_loop_of_links_has_a_name(tmp_path: Path) -> None:
    (loop := tmp_path / "loop").symlink_to(loop)
    assert ServedBundle.parse(str(loop)) == ServedBundle("loop", loop)


def test_names_and_addresses_are_checked_at_creation(tiny: ServedBundle, server: Running) -> None:
    def make(*bundles: ServedBundle, port: int = 0, host: str = "127.0.0.1") -> HttpServer:
        return HttpServer(bundles, in_thread(), ServerConfig(host=host, port=port))

    with pytest.raises(UsageError, match="tiny names two bundles"):
        make(tiny, tiny)
    with pytest.raises(UsageError, match="can't be listened on"):
        make(tiny, port=int(server.url.rpartition(":")[2]))
    for host, shown in (("a..b", "a..b"), ("a" * 64, "a" * 64), ("1::g", r"\[1::g\]")):
        with pytest.raises(UsageError, match=f"{shown}:0 can't be listened on"):
            make(tiny, host=host)
    with pytest.raises(UsageError, match="host is ''; string should have at least 1 character"):
        make(tiny, host="")
    for name in ("", "tin\udce9", "a\nb"):
        with pytest.raises(UsageError, match="not printable text in UTF-8; write NAME=PATH"):
            make(ServedBundle(name, tiny.path))
    assert ServedBundle.parse("a=b/c") == ServedBundle("a", Path("b/c"))
    assert ServedBundle.parse("b/c").name == "c"
    with pytest.raises(UsageError, match="NAME=PATH"):
        ServedBundle.parse("=b")
