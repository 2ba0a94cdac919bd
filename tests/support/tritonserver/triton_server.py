"""Run the real tritonserver of scripts/tritonserver/environment.sh, and its clients."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from random import sample
from threading import Thread
from time import monotonic
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest

VARIABLE = "SKIPDEC_TRITON_ENVIRONMENT"
SERVER = Path(__file__).parents[3] / "scripts" / "tritonserver" / "server.sh"
TIMEOUT = 180.0  # seconds, for any wait


needs_environment = pytest.mark.skipif(
    not os.environ.get(VARIABLE),
    reason=f"{VARIABLE} names none that scripts/tritonserver/environment.sh made",
)


class TritonServer:
    """A running server, with its process, addresses and last output."""

    def __init__(self, process: subprocess.Popen[str], ports: list[int], repository: Path) -> None:
        self.process = process
        self.repository = repository
        self.http, self.grpc, self.metrics = (f"127.0.0.1:{port}" for port in ports)
        self._lines: deque[str] = deque(maxlen=100)
        self._is_up: SimpleQueue[bool] = SimpleQueue()
        Thread(target=self._read, daemon=True).start()
        assert self._is_up.get(timeout=TIMEOUT), "\n".join(self._lines)
        _await_listener(ports[-1])

    def _read(self) -> None:
        """Read the output to EOF so that the pipe never fills; metrics start last."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.append(line.rstrip())
            if "Started Metrics Service" in line:
                self._is_up.put(True)
        self._is_up.put(False)

    def post(self, path: str, **document: object) -> tuple[int, Any]:
        """Return the status and JSON of the server's answer."""
        request = Request(f"http://{self.http}{path}", json.dumps(document).encode())
        try:
            with urlopen(request, timeout=TIMEOUT) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except HTTPError as error:
            return error.code, json.loads(error.read())

    def generate(self, model: str, **inputs: object) -> dict[str, Any]:
        """Return the answer of ``/generate``."""
        answer: dict[str, Any] = self.post(f"/v2/models/{model}/generate", **inputs)[1]
        return answer

    def generate_stream(self, model: str, **inputs: object) -> Iterator[Any]:
        """Yield the events of ``/generate_stream``; stopping early closes the connection."""
        url = f"http://{self.http}/v2/models/{model}/generate_stream"
        with urlopen(Request(url, json.dumps(inputs).encode()), timeout=TIMEOUT) as answer:
            for line in answer:
                if line.startswith(b"data: "):
                    yield json.loads(line[len(b"data: ") :])

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric over all other labels."""
        with urlopen(f"http://{self.metrics}/metrics", timeout=TIMEOUT) as answer:
            lines = answer.read().decode().splitlines()
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith(f"{name}{{") and all(label in line for label in wanted)
        )


class Stream:
    """A gRPC stream of responses to its requests."""

    def __init__(self, server: TritonServer, model: str, **inputs: object) -> None:
        from tritonclient import grpc

        self._client = grpc.InferenceServerClient(server.grpc)
        self._answers: SimpleQueue[tuple[Any, Any]] = SimpleQueue()
        self._client.start_stream(lambda result, error: self._answers.put((result, error)))
        self._model = model
        self.ask(**inputs)

    def ask(self, **inputs: object) -> None:
        """Send another request."""
        self._client.async_stream_infer(
            self._model,
            [_input(name, value) for name, value in inputs.items()],
            enable_empty_final_response=True,
        )

    def next(self) -> tuple[Any, Any]:
        """Return the next response and error; one of them is None."""
        return self._answers.get(timeout=TIMEOUT)

    def results(self) -> Iterator[Any]:
        """Return all responses of one request, including the final one."""
        while True:
            result, error = self.next()
            assert error is None, error
            if result.get_output("text_output") is not None:
                yield result
            if result.get_response().parameters["triton_final_response"].bool_param:
                self.close()
                return

    def close(self, *, cancel: bool = False) -> None:
        """End the stream; ``cancel`` also cancels its request."""
        self._client.stop_stream(cancel_requests=cancel)
        self._client.close()


def _input(name: str, value: Any) -> Any:  # noqa: ANN401  (InferInput)
    """Return a one-dimensional tensor of the type that the model declares."""
    from tritonclient import grpc

    values = value if isinstance(value, list) else [value]
    match values[0]:
        case str():
            kind, array = "BYTES", np.array([text.encode() for text in values], dtype=object)
        case bool():
            kind, array = "BOOL", np.array(values)
        case float():
            kind, array = "FP32", np.array(values, dtype=np.float32)
        case _:
            kind, array = "INT32", np.array(values, dtype=np.int32)
    tensor = grpc.InferInput(name, list(array.shape), kind)
    tensor.set_data_from_numpy(array)
    return tensor


@contextmanager
def running(repository: Path, *options: str) -> Iterator[TritonServer]:
    """Run a server of ``repository`` inside the block; requires its client package."""
    folder = Path(os.environ[VARIABLE]).resolve()
    sys.path += [str(path) for path in folder.glob("lib/python3*/site-packages")]
    ports = _free_ports(3)
    names = ("http", "grpc", "metrics")
    flags = [f"--{name}-port={port}" for name, port in zip(names, ports, strict=True)]
    process = subprocess.Popen(
        [str(SERVER), str(folder), str(repository), *flags, *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield TritonServer(process, ports, repository)
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[str]) -> None:
    """Stop the server with SIGTERM, of which tritonserver 2.51 may miss one but not two."""
    for _ in range(4):
        process.terminate()
        try:
            process.wait(timeout=TIMEOUT / 12)
        except subprocess.TimeoutExpired:
            continue
        return
    process.kill()
    raise AssertionError("tritonserver did not end")


def _await_listener(port: int) -> None:
    """Wait for the metrics listener, which announces itself just before it listens."""
    until = monotonic() + TIMEOUT
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), TIMEOUT).close()
        except ConnectionRefusedError:
            assert monotonic() < until
        else:
            return


def _free_ports(count: int) -> list[int]:
    """Return ports below those that the system gives to other processes before the server binds."""
    system = Path("/proc/sys/net/ipv4/ip_local_port_range")
    lowest = int(system.read_text().split()[0]) if system.exists() else 0
    chosen: list[int] = []
    for port in sample(range(10_000, max(lowest, 20_000)), 1000):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            chosen.append(port)
        if len(chosen) == count:
            break
    return chosen
