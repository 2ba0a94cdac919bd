"""Programs of examples/cpp and docs/cpp.md, once installed, generate the right texts."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from page_blocks import ROOT, blocks
from programs import FOLDER, built_app, built_examples
from runtimes import LIBRARY

from skipdec.exporter.config import ExportConfig
from skipdec.exporter.pipeline.exporting import export

pytestmark = pytest.mark.pages  # builds what examples/cpp/README.md shows

ENVIRONMENT = os.environ | {"SKIPDEC_ONNXRUNTIME": str(LIBRARY), "OMP_NUM_THREADS": "1"}
LONG = {"prompt": "a", "max_tokens": 0, "seed": 1, "stream": True}


def output_of(*command: object, at: Path | None = None) -> str:
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=True,
        cwd=at,
    )
    return done.stdout


def expected(bundle: Path, prompt: str, *options: str) -> str:
    """Return the output of skipdec-run, which is tested against ``skipdec generate``."""
    return output_of(built_app("skipdec-run"), bundle, "-p", prompt, *options)


@pytest.mark.parametrize("program", ["generate", "generate-c"])
def test_example_programs_write_the_same_text_as_skipdec_run(
    text_bundle: Path, program: str
) -> None:
    output = output_of(built_examples() / program, text_bundle, "Hello", "2x")
    greedy = ("--temperature", "0", "--max-tokens", "32", "--schedule", "2x")
    wanted = expected(text_bundle, "Hello", *greedy)
    assert output.partition("sampled: ")[0] == wanted
    assert output.count("sampled: ") == (2 if program == "generate" else 0)


def test_the_program_in_the_docs_writes_a_sentence(tmp_path: Path) -> None:
    built_examples()
    (program,) = blocks("docs/cpp.md", "cpp")
    (linked,) = blocks("docs/cpp.md", "cmake")
    (tmp_path / "main.cpp").write_text(program)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.22)\nproject(service)\nset(CMAKE_CXX_STANDARD 17)\n"
        f"{linked}install(TARGETS service)\n"
    )
    output_of("cmake", "-S", tmp_path, "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={FOLDER}/installed")
    output_of("cmake", "--build", tmp_path)
    output_of("cmake", "--install", tmp_path, "--prefix", tmp_path)
    model = str(ROOT / "examples" / "restaurants")
    bundle = tmp_path / "restaurants-int8"
    export(ExportConfig(model=model, output=bundle, quantize="int8", verify=False))
    written = output_of(tmp_path / "bin" / "service", at=tmp_path)
    assert written == "Cotto is a pub in the riverside area."


@pytest.mark.parametrize("program", ["generate", "generate-c"])
def test_example_programs_report_errors(program: str) -> None:
    command = [built_examples() / program, "nowhere", "Hello", "4x"]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "nowhere" in done.stderr


def server() -> Path:
    """Return the example server; skips the test if it was not built."""
    program = built_examples() / "server"
    if not program.exists():
        pytest.skip("no server: libcpp-httplib-dev or nlohmann-json3-dev is missing")
    return program


@pytest.mark.parametrize("port", ["http", "80x", "-1", "99999"])
def test_the_server_refuses_what_is_no_port(port: str) -> None:
    command = [server(), "nowhere", port]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 1
    assert done.stderr == f"error: port | is '{port}'; allowed: 0 to 65535\n"


@contextmanager
def serving(bundle: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the example server and yield its process and address."""
    with subprocess.Popen(
        [server(), str(bundle), "0"], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().removeprefix("listening on ").strip()
            yield process, urlsplit(url).netloc
        finally:
            process.kill()


@pytest.fixture(scope="module")
def address(text_bundle: Path) -> Iterator[str]:
    with serving(text_bundle) as (_, netloc):
        yield netloc


def post_completion(netloc: str, body: object) -> tuple[int, bytes]:
    """Return the status and content of POST /v1/completions."""
    with closing(HTTPConnection(netloc, timeout=60)) as connection:
        content = body if isinstance(body, bytes) else json.dumps(body)
        connection.request("POST", "/v1/completions", content)
        response = connection.getresponse()
        return response.status, response.read()


def health(netloc: str) -> dict[str, Any]:
    with closing(HTTPConnection(netloc, timeout=60)) as connection:
        connection.request("GET", "/health")
        return dict(json.loads(connection.getresponse().read()))


def events_of(content: bytes) -> list[str]:
    return [event.removeprefix("data: ") for event in content.decode().split("\n\n")[:-1]]


def test_a_streamed_answer_has_the_same_text_as_a_whole_one(
    text_bundle: Path, address: str
) -> None:
    body = {"prompt": "Hello", "max_tokens": 30, "temperature": 0.9, "top_p": 0.95, "seed": 7}
    status, content = post_completion(address, body | {"schedule": "2x"})
    answer = json.loads(content)
    (choice,) = answer["choices"]
    assert status == 200
    assert {str(count) for count in answer["layers"]} == set(answer["layer_sets"])
    assert all(len(layers) == int(count) for count, layers in answer["layer_sets"].items())
    assert choice["finish_reason"] == "length"
    *events, done = events_of(
        post_completion(address, body | {"schedule": "2x", "stream": True})[1]
    )
    assert done == "[DONE]"
    pieces = [json.loads(event)["choices"][0]["text"] for event in events]
    assert "".join(pieces) == choice["text"]
    options = ("--max-tokens", "30", "--temperature", "0.9", "--top-p", "0.95", "--seed", "7")
    assert choice["text"] + "\n" == expected(text_bundle, "Hello", *options, "--schedule", "2x")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "body | is no JSON object; give one with a prompt"),
        ({}, "body | gives no prompt"),
        (b"[" * 1_000_000, "body | is an array; give an object with a prompt"),
        (b'{"prompt": ' + b"[" * 1_000_000, "body | prompt is an array or object; allowed: one"),
        (b'{"prompt": {"prompt": "a"}}', "body | prompt is an array or object; allowed: one"),
        (b'{"prompt": "a", "prompt": "b"}', "body | prompt is given twice; give it once"),
        ({"prompt": 3}, "body | prompt is 3; allowed: a text"),
        ({"prompt": "a", "temp": 1}, "body | temp is unknown; allowed: max_tokens prompt"),
        ({"prompt": "a", "max_tokens": 1.5}, "body | max_tokens is 1.5; allowed: an integer"),
        ({"prompt": "a", "temperature": -1}, "SamplingParams | temperature is -1; allowed: "),
        ({"prompt": "a", "schedule": "7y"}, "7y"),
        ({"prompt": "a" * 100}, "64 positions"),
        ({"prompt": "a\0b"}, "prompt | has a zero byte"),
    ],
)
def test_bad_input_is_answered_with_the_librarys_error_message(
    address: str, body: object, words: str
) -> None:
    status, content = post_completion(address, body)
    assert status == 400
    assert words in json.loads(content)["error"]["message"]


def test_streams_of_disconnected_clients_are_cancelled(address: str) -> None:
    content = json.dumps(LONG)
    request = f"POST /v1/completions HTTP/1.1\r\nContent-Length: {len(content)}\r\n\r\n{content}"
    before = health(address)["aborted"]
    host, port = address.split(":")
    for _ in range(50):
        with socket.create_connection((host, int(port))) as client:
            client.sendall(request.encode())
    assert post_completion(address, {"prompt": "a"})[0] == 200  # queued after them
    for _ in range(1000):
        if (now := health(address))["running"] + now["waiting"] == 0:
            break
    assert now["status"] == "ok"
    assert now["aborted"] > before


def test_sigterm_lets_running_streams_finish(text_bundle: Path) -> None:
    with serving(text_bundle) as (process, netloc), ExitStack() as stack:
        streams = []
        for _ in range(20):
            connection = stack.enter_context(closing(HTTPConnection(netloc, timeout=60)))
            connection.request("POST", "/v1/completions", json.dumps(LONG))
            streams.append(connection)
        responses = [connection.getresponse() for connection in streams]  # all have begun
        process.send_signal(signal.SIGTERM)
        assert {events_of(response.read())[-1] for response in responses} == {"[DONE]"}
        assert process.wait(timeout=60) == 0
