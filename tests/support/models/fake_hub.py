"""A small in-memory server of the hub's HTTP API for repositories of files.

It supports what huggingface_hub needs in ``create_repo``, ``create_branch``, ``upload_folder`` and
``snapshot_download``: no LFS or Xet storage, no tokens, one commit per branch.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote

import pytest

Files = dict[str, bytes]


class FakeHub(ThreadingHTTPServer):
    """Stores files in ``branches`` by ``repo_id@branch``, and privacy in ``private`` by repo_id."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.branches: dict[str, Files] = {}
        self.private: dict[str, Any] = {}
        self.refuses = False

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def fake_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """Serve as huggingface_hub's only hub inside the block."""
    with FakeHub() as hub:
        files = f"{hub.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.endpoint)
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", files)
        monkeypatch.setenv("HF_TOKEN", "hf_of_nobody")
        thread = Thread(target=hub.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()


def _commit(files: Files) -> str:
    return hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        parts = [unquote(part) for part in self.path.strip("/").split("/")]
        if self.server.refuses:
            self._answer(401, {"error": "Invalid credentials"})
        elif parts == ["api", "repos", "create"]:
            asked = json.loads(body)
            repo_id = "/".join(filter(None, (asked.get("organization"), asked["name"])))
            self.server.private[repo_id] = asked.get("private", asked.get("visibility"))
            self.server.branches.setdefault(f"{repo_id}@main", {})
            self._answer(200, {"url": f"{self.server.endpoint}/{repo_id}"})
        elif parts == ["api", "validate-yaml"]:
            self._answer(200, {"errors": [], "warnings": []})
        else:
            repo_id, action, branch = "/".join(parts[2:4]), parts[4], parts[5]
            if action == "branch":
                self.server.branches.setdefault(f"{repo_id}@{branch}", {})
                self._answer(200, {})
            elif action == "preupload":
                asked = json.loads(body)["files"]
                modes = [{"path": file["path"], "uploadMode": "regular"} for file in asked]
                self._answer(200, {"files": [{**mode, "shouldIgnore": False} for mode in modes]})
            else:
                assert action == "commit"
                files = self.server.branches[f"{repo_id}@{branch}"]
                for line in map(json.loads, body.splitlines()):
                    if line["key"] == "file":
                        value = line["value"]
                        files[value["path"]] = base64.b64decode(value["content"])
                oid = _commit(files)
                url = f"{self.server.endpoint}/{repo_id}/commit/{oid}"
                self._answer(200, {"success": True, "commitOid": oid, "commitUrl": url})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = [unquote(part) for part in self.path.partition("?")[0].strip("/").split("/")]
        if self.server.refuses:
            self._answer(401, {"error": "Invalid credentials"})
            return
        if parts[0] == "api":
            repo_id = "/".join(parts[2:4])
            files = self.server.branches[f"{repo_id}@main"]
            if parts[4:5] == ["tree"]:
                entries = [
                    {"type": "file", "path": path, "size": len(content), "oid": _git_oid(content)}
                    for path, content in files.items()
                ]
                self._answer(200, entries)
                return
            siblings = [{"rfilename": path} for path in files]
            self._answer(200, {"id": repo_id, "sha": _commit(files), "siblings": siblings})
            return
        repo_id, path = "/".join(parts[:2]), "/".join(parts[4:])
        files = self.server.branches[f"{repo_id}@main"]
        content = files[path]
        self._send(
            200,
            content,
            {"ETag": f'"{_git_oid(content)}"', "X-Repo-Commit": _commit(files)},
        )

    def _answer(self, status: int, document: Any) -> None:  # noqa: ANN401
        self._send(status, json.dumps(document).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def _git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
