"""The peer's process: the same requests in OpenVINO GenAI's ContinuousBatchingPipeline."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.serving.ways import Requests, Texts

_CACHE_GIGABYTES = 4
_PROGRAM = Path(__file__).parent / "openvino_batch.py"


class OpenVINOPeer:
    """Its loaded pipeline, idle between two runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, requests: Requests) -> tuple[float, Texts]:
        """Return seconds, by its own clock, and texts; all requests wait from the start."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        counts = [request.max_tokens for request in requests.requests]
        line = json.dumps({"prompts": requests.prompts, "max_tokens": counts})
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"OpenVINO's process ended with {self._process.wait()}")
        found = json.loads(answer)
        return float(found["seconds"]), [tuple(text) for text in found["texts"]]


@contextmanager
def openvino_peer(python: Path, model: Path, slots: int, threads: int) -> Iterator[OpenVINOPeer]:
    """Start it with the peers' interpreter ``python`` on its ``model``."""
    command = [str(part) for part in (python, _PROGRAM, model, slots, threads, _CACHE_GIGABYTES)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield OpenVINOPeer(process)
        finally:
            process.kill()
