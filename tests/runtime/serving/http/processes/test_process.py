"""``skipdec serve`` in its own process reports errors and ends at signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Thread, Timer
from time import monotonic, sleep

import httpx2
import pytest
from attack.processes import child_processes, is_running
from command_line import SKIPDEC
from mutations import copy_bundle

from skipdec.runtime.serving.http.config import ServerConfig

LONG = {"prompt": ["a", "b"], "max_tokens": 50, "ignore_eos": True}


class ServeProcess:
    """Runs ``skipdec serve`` with lines of JSON on stderr."""

    def __init__(self, bundle: Path, *options: str) -> None:
        command = [*SKIPDEC, "serve"]
        command += [f"tiny={bundle}", "--port", "0", "--threads", "1", "--log-format", "json"]
        self.process = subprocess.Popen(
            [*command, *options], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        self._limit = Timer(300, self.process.kill)  # ends reads from a hung server
        self._limit.daemon = True
        self._limit.start()
        self.address = str(self.line("listening")["address"])

    def line(self, begin: str) -> dict[str, object]:
        """Return the next line whose message starts with ``begin``; skip others."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            document: dict[str, object] = json.loads(line)
            if str(document["message"]).startswith(begin):
                return document
        raise AssertionError(f"no line {begin!r}, exit code {self.process.wait()}")

    def rest(self) -> str:
        """Return all further lines once the process has ended.

        `communicate` would lose lines that arrived together with the last `line`.
        """
        assert self.process.stderr is not None
        lines = self.process.stderr.read()
        self.process.wait(60)
        return lines

    def end(self) -> None:
        self._limit.cancel()
        self.process.kill()
        self.rest()

    def workers(self) -> list[int]:
        """Return the process ids of running children that have called exec.

        Until a child has called exec, its parent is suspended in vfork: stopping such a child
        would stop the server, too.
        """
        own = command_line(self.process.pid)
        pids = child_processes(self.process.pid)
        return [pid for pid in pids if is_running(pid) and command_line(pid) != own]

    def complete(self, **fields: object) -> httpx2.Response:
        address = f"{self.address}/v1/completions"
        return httpx2.post(address, json=LONG | fields, timeout=120)

    def wait_for_waiting(self, count: int) -> None:
        """Wait until ``count`` prompts wait."""
        waiting = f'skipdec_requests_waiting{{model="tiny"}} {count}.0'
        until = monotonic() + 60
        while waiting not in httpx2.get(f"{self.address}/metrics").text:
            assert monotonic() < until
            sleep(0.01)


def wait_for_end(pids: list[int]) -> None:
    """Wait until none of these processes runs; zombies count as ended."""
    until = monotonic() + 60
    while any(map(is_running, pids)):
        assert monotonic() < until
        sleep(0.01)


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@contextmanager
def started(bundle: Path, *options: str) -> Iterator[ServeProcess]:
    served = ServeProcess(bundle, *options)
    try:
        yield served
    finally:
        served.end()


@pytest.mark.slow
def test_sigterm_under_load_loses_no_text(bundle: Path) -> None:
    with started(bundle) as served, ThreadPoolExecutor() as pool:
        served.line("ready")
        pending = [pool.submit(served.complete, prompt=["a"] * 10) for _ in range(4)]
        served.line("POST")  # one text has ended, others run
        served.process.send_signal(signal.SIGTERM)
        answers = [one.result(60) for one in pending]
        reader = Thread(target=served.line, args=("stopped",))
        reader.start()
        assert served.process.wait(60) == 0
        reader.join(60)
    assert [answer.status_code for answer in answers] == [200] * 4
    reasons = {choice["finish_reason"] for answer in answers for choice in answer.json()["choices"]}
    assert reasons == {"length"}


@pytest.mark.slow
def test_a_second_sigterm_ends_the_server_at_once(bundle: Path) -> None:
    with started(bundle) as served, ThreadPoolExecutor() as pool:
        served.line("ready")
        (worker,) = served.workers()
        os.kill(worker, signal.SIGSTOP)  # else the texts could end before the second signal
        pending = pool.submit(served.complete)
        served.wait_for_waiting(2)
        served.process.send_signal(signal.SIGTERM)
        served.line("draining")
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(60) == -signal.SIGTERM
        wait_for_end([worker])
        assert isinstance(pending.exception(60), httpx2.TransportError)


@pytest.mark.slow
def test_sigterm_with_a_hung_worker_answers_all_requests(bundle: Path) -> None:
    with started(bundle, "--shutdown-timeout", "1") as served, ThreadPoolExecutor() as pool:
        served.line("ready")
        (worker,) = served.workers()
        os.kill(worker, signal.SIGSTOP)
        scored = {"echo": True, "logprobs": 1, "max_tokens": 0}
        bodies: list[dict[str, object]] = [{}, {"stream": True}, scored]
        answers = [pool.submit(served.complete, prompt="a", **fields) for fields in bodies]
        served.wait_for_waiting(3)
        served.process.send_signal(signal.SIGTERM)
        whole, stream, score = (answer.result(60) for answer in answers)
        lines = served.rest()
        assert served.process.returncode == 0
        wait_for_end([worker])
    assert [one.status_code for one in (whole, stream, score)] == [503, 200, 503]
    event, done = stream.text.removeprefix("data: ").split("\n\ndata: ")
    assert done == "[DONE]\n\n"
    for error in (whole.json(), json.loads(event), score.json()):
        assert error["error"]["code"] == "unavailable"
    assert "traceback" not in lines


@pytest.mark.slow
@pytest.mark.parametrize("hangs", [False, True])
def test_sigterm_while_loading_ends_the_server_and_its_workers(bundle: Path, hangs: bool) -> None:
    with started(bundle, f"twin={bundle}") as served:
        while not (workers := served.workers()):
            assert served.process.poll() is None
            sleep(0.01)
        if hangs:
            os.kill(workers[0], signal.SIGSTOP)
        served.process.send_signal(signal.SIGTERM)
        served.line("stopped")
        assert served.process.wait(60) == 0
        wait_for_end(workers)


@pytest.mark.slow
def test_workers_end_with_a_killed_server(bundle: Path) -> None:
    with started(bundle, f"twin={bundle}") as served, ThreadPoolExecutor() as pool:
        served.line("ready")
        workers = served.workers()
        assert len(workers) == 2
        pending = [pool.submit(served.complete, model="twin", prompt=["a"] * 60) for _ in range(4)]
        served.line("POST")  # the first request has ended
        served.process.kill()
        wait_for_end(workers)
        assert any(isinstance(one.exception(60), httpx2.TransportError) for one in pending)


@pytest.mark.slow
def test_a_broken_bundle_is_named_before_any_is_loaded(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from skipdec.cli import build_app

    broken = copy_bundle(bundle, tmp_path)
    (broken / "tokenizer.json").write_text("{}")
    with pytest.raises(SystemExit) as end:
        build_app()(["serve", f"good={bundle}", f"bad={broken}", "--port", "0"])
    stderr = capsys.readouterr().err
    assert end.value.code == 1
    assert f"{broken} | " in stderr
    assert "tokenizer.json" in stderr
    assert "runs" not in stderr


def test_an_invalid_allowed_schedule_is_refused_before_listening(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from skipdec.cli import build_app

    with pytest.raises(SystemExit) as end:
        build_app()(["serve", str(bundle), "--port", "0", "--allow-schedule", "steep"])
    stderr = capsys.readouterr().err
    assert end.value.code == 2
    assert "'steep'" in stderr
    assert "listening" not in stderr


def test_an_address_in_use_is_refused_before_an_export(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from skipdec import cli

    monkeypatch.setattr(cli, "_cached_bundle", lambda *_: pytest.fail("the checkpoint is exported"))
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SystemExit) as end:
        cli.build_app()(["serve", "checkpoint", "--port", str(taken.getsockname()[1])])
    assert end.value.code == 2
    assert "can't be listened on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["nowhere", "--port", "0"], "nowhere"),
        (["{bundle}", "{bundle}", "--port", "0"], "names two bundles"),
        (["a", "--port", "70000"], "--port is 70000"),
        (["a", "--admission", "best"], "best"),
        (["a", "--shutdown-timeout", "-1"], "--shutdown-timeout is -1"),
    ],
)
def test_an_invalid_option_ends_the_command_with_the_reason(
    arguments: list[str], problem: str, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from skipdec.cli import build_app

    with pytest.raises(SystemExit) as end:
        build_app()(["serve", *(word.format(bundle=bundle) for word in arguments)])
    assert end.value.code
    assert problem in capsys.readouterr().err


def test_by_default_the_server_listens_only_on_localhost() -> None:
    assert ServerConfig().host == "127.0.0.1"
    assert ServerConfig().max_body == 1 << 20
