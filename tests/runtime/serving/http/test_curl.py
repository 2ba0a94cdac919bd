"""curl, as an operator types it: whole, as a stream, and an error as its exit code."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from http_servers import Running

CURL = shutil.which("curl")
ASKED = {"prompt": "name[Alimentum]", "max_tokens": 5, "temperature": 0, "ignore_eos": True}


def curl(server: Running, *options: str) -> subprocess.CompletedProcess[str]:
    if CURL is None:
        pytest.skip("there is no curl on PATH: apt-get install curl")
    command = [CURL, "--silent", "--max-time", "60", *options, f"{server.url}/v1/completions"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_curl_gets_a_text_whole_and_as_events(server: Running) -> None:
    whole = json.loads(curl(server, "--json", json.dumps(ASKED)).stdout)
    streamed = curl(server, "--no-buffer", "--json", json.dumps(ASKED | {"stream": True})).stdout
    *events, last = [line.removeprefix("data: ") for line in streamed.splitlines() if line]
    assert last == "[DONE]"
    text = "".join(json.loads(event)["choices"][0]["text"] for event in events)
    assert text == whole["choices"][0]["text"]
    assert text


def test_curl_fails_by_its_exit_code_and_still_says_why(server: Running) -> None:
    failed = curl(server, "--fail-with-body", "--json", json.dumps(ASKED | {"foo": 1}))
    assert failed.returncode == 22
    assert "'foo' is unknown" in json.loads(failed.stdout)["error"]["message"]
