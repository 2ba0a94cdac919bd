"""Two servers behind nginx work with examples/deployment/nginx.conf."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import httpx2
import pytest
from http_servers import Running, held_steps, serving
from page_blocks import ROOT

from skipdec.runtime.serving.http.server import ServedBundle

NGINX = shutil.which("nginx")
CONFIGURATION = ROOT / "examples" / "deployment" / "nginx.conf"

pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


@contextmanager
def proxied(directory: Path, *servers: Running) -> Iterator[httpx2.Client]:
    """Yield a client of nginx, which runs the example with other ports and short timeouts."""
    port, text = free_port(), CONFIGURATION.read_text()
    changes = {f"127.0.0.1:800{index}": one.url for index, one in enumerate(servers, start=1)}
    changes |= {"listen 8000;": f"listen 127.0.0.1:{port};", "_timeout 30s;": "_timeout 1s;"}
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new.removeprefix("http://"))
    own = f"pid {directory}/pid;\nerror_log {directory}/errors;\n"
    paths = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"    {path}_temp_path {directory};\n" for path in paths)
    text = own + text.replace("http {\n", f"http {{\n    access_log off;\n{temporary}", 1)
    (directory / "nginx.conf").write_text(text)
    command = [str(NGINX), "-p", str(directory), "-c", "nginx.conf", "-g", "daemon off;"]
    nginx = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            until = monotonic() + 30
            while True:
                try:
                    client.get("/version")
                    break
                except httpx2.ConnectError:
                    assert nginx.poll() is None
                    assert monotonic() < until
            yield client
    finally:
        nginx.terminate()
        nginx.wait(30)


@pytest.fixture(scope="module")
def two(bundle: Path) -> Iterator[tuple[Running, Running]]:
    tiny = ServedBundle("tiny", bundle)
    with serving(tiny) as first, serving(tiny) as second:
        yield first, second


def test_requests_go_to_the_server_with_the_fewest_connections(
    two: tuple[Running, Running], tmp_path: Path
) -> None:
    body = {"prompt": "a", "temperature": 0, "max_tokens": 6}
    expected = two[0].complete(**body).json()["choices"][0]
    with proxied(tmp_path, *two) as client:
        for _ in range(4):
            answer = client.post("/v1/completions", json=body)
            assert answer.json()["choices"][0] == expected
        with held_steps() as waits:
            slow = client.stream("POST", "/v1/completions", json=body | {"stream": True})
            with slow as stream:  # its first token arrives while its second is held
                assert next(iter(stream.iter_lines())).startswith("data: {")
                assert waits.wait(60)
                assert client.get("/health/ready").status_code == 200
        assert client.get("/metrics").status_code == 403
    finished = 'skipdec_requests_total{model="tiny",state="submitted"}'
    assert all(one.figures()[finished] > 0 for one in two)


def test_a_draining_server_gets_no_requests(two: tuple[Running, Running], tmp_path: Path) -> None:
    two[0].server.models.is_draining = True
    try:
        assert two[0].http.get("/health/ready").status_code == 503
        with proxied(tmp_path, *two) as client:
            for _ in range(6):
                assert client.get("/health/ready").status_code == 200
    finally:
        two[0].server.models.is_draining = False


@pytest.mark.parametrize("sent", [b"GET /version HT", b"POST /v1/completions HTTP/1.1\r\n"])
def test_the_proxy_cuts_slow_clients(
    two: tuple[Running, Running], tmp_path: Path, sent: bytes
) -> None:
    with proxied(tmp_path, *two) as client:
        port = client.base_url.port
        with socket.create_connection(("127.0.0.1", int(port or 0)), 30) as slow:
            slow.sendall(sent)
            while slow.recv(4096):  # 408 or nothing, until the connection closes
                pass
        assert client.post("/v1/completions", content=bytes(2 << 20)).status_code == 413
