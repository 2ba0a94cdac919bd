"""A process of its own: what its command prints, and how signals end it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import httpx2
import pytest

from skipdec.runtime.serving.http.config import ServerConfig

LONG = {"prompt": ["a", "b"], "max_tokens": 50, "ignore_eos": True}


class Process:
    """``skipdec serve`` with lines of JSON on stderr."""

    def __init__(self, bundle: Path, *options: str) -> None:
        command = [sys.executable, "-c", "from skipdec.cli import main; main()", "serve"]
        command += [f"tiny={bundle}", "--port", "0", "--threads", "1", "--log-format", "json"]
        self.process = subprocess.Popen(
            [*command, *options], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        self.address = str(self.line("listening")["address"])

    def line(self, begin: str) -> dict[str, object]:
        """The next line whose message begins so; others are passed over."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            document: dict[str, object] = json.loads(line)
            if str(document["message"]).startswith(begin):
                return document
        raise AssertionError(f"no line {begin!r}, exit code {self.process.wait()}")

    def complete(self, **fields: object) -> httpx2.Response:
        address = f"{self.address}/v1/completions"
        return httpx2.post(address, json=LONG | fields, timeout=120)


@contextmanager
def started(bundle: Path, *options: str) -> Iterator[Process]:
    served = Process(bundle, *options)
    try:
        yield served
    finally:
        served.process.kill()
        served.process.communicate()


@pytest.mark.slow
def test_sigterm_under_load_loses_no_text(bundle: Path) -> None:
    with started(bundle) as served, ThreadPoolExecutor() as pool:
        served.line("ready")
        asked = [pool.submit(served.complete) for _ in range(4)]
        served.line("POST")  # one has ended, others run
        served.process.send_signal(signal.SIGTERM)
        answers = [one.result() for one in asked]
        reader = Thread(target=served.line, args=("stopped",))
        reader.start()
        assert served.process.wait(60) == 0
        reader.join()
    assert [answer.status_code for answer in answers] == [200] * 4
    reasons = {choice["finish_reason"] for answer in answers for choice in answer.json()["choices"]}
    assert reasons == {"length"}


@pytest.mark.slow
def test_a_second_sigterm_ends_it_at_once(bundle: Path) -> None:
    with started(bundle) as served, ThreadPoolExecutor() as pool:
        served.line("ready")
        asked = [pool.submit(served.complete, prompt=["a"] * 60) for _ in range(4)]
        served.line("POST")
        served.process.send_signal(signal.SIGTERM)
        served.line("draining")
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(60) == -signal.SIGTERM
        assert any(isinstance(one.exception(), httpx2.TransportError) for one in asked)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere", "--port", "0"], "nowhere"),
        (["a", "a", "--port", "0"], "names two bundles"),
        (["a", "--port", "70000"], "--port is 70000"),
        (["a", "--admission", "best"], "best"),
        (["a", "--shutdown-timeout", "-1"], "--shutdown-timeout is -1"),
    ],
)
def test_what_is_wrong_ends_the_command_with_its_reason(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from skipdec.cli import build_app

    with pytest.raises(SystemExit) as end:
        build_app()(["serve", *arguments])
    assert end.value.code
    assert told in capsys.readouterr().err


def test_defaults_are_those_of_a_server_that_nobody_else_reaches() -> None:
    assert ServerConfig().host == "127.0.0.1"
    assert ServerConfig().max_body == 1 << 20
