"""Ways to continue the same prompts, each an engine of worker.py with its options."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep
from typing import Any

WORKER = Path(__file__).parent / "worker.py"
_SETTLE_SECONDS = 0.1  # until the threads of the way before have stopped spinning
OPENVINO = "openvino"


@dataclass(frozen=True)
class Way:
    """An engine with options; it is held against ``plain``, the same engine without drafts.

    ``opening`` are the options of loading: ways that differ in them have processes of their own.
    """

    name: str
    engine: str
    plain: str
    options: Mapping[str, Any] = field(default_factory=dict)
    opening: Mapping[str, Any] = field(default_factory=dict)

    @property
    def process(self) -> str:
        """Name of the process that runs it."""
        return f"{self.engine} {json.dumps(dict(self.opening))}"


PEERS = (
    Way("transformers", "transformers", "transformers"),
    Way(
        "transformers, prompt lookup",
        "transformers",
        "transformers",
        {"prompt_lookup_num_tokens": 10},
    ),
    Way("transformers, early exit", "transformers", "transformers", {"assistant_early_exit": 3}),
    Way("OpenVINO GenAI", OPENVINO, "OpenVINO GenAI"),
    Way(
        "OpenVINO GenAI, prompt lookup",
        OPENVINO,
        "OpenVINO GenAI",
        {"num_assistant_tokens": 5, "max_ngram_size": 3},
        {"prompt_lookup": True},
    ),
)
"""Options are those of the peers' guides and examples."""


def own_ways(drafts: Sequence[str]) -> tuple[Way, ...]:
    """Return skipdec at full depth without drafts, and with each draft text."""
    plain = Way("skipdec", "skipdec", "skipdec")
    opened = ((text, {"draft": text}) for text in drafts)
    return (
        plain,
        *(Way(f"skipdec, `{text}`", "skipdec", "skipdec", {}, opening) for text, opening in opened),
    )


@dataclass
class Answers:
    """What one way wrote in one round: seconds, texts and passes, one each per prompt."""

    seconds: list[float] = field(default_factory=list)
    texts: list[list[int]] = field(default_factory=list)
    passes: list[int | None] = field(default_factory=list)

    def add(self, found: Mapping[str, Any]) -> None:
        """Append an answer of the worker."""
        self.seconds += found["seconds"]
        self.texts += found["texts"]
        self.passes += found["passes"]


class Worker:
    """A process that runs one way or several; idle between requests."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the answer to a request, after a pause."""
        sleep(_SETTLE_SECONDS)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        found: Mapping[str, Any] = json.loads(self.line())
        return found

    def line(self) -> str:
        """Return the next line. Ends this process if there is none; stderr has the reason."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a worker stopped: {self._process.args!r}")
        return line


@contextmanager
def started(python: Path, way: Way, directory: Path, threads: int) -> Iterator[Worker]:
    """Run the process of a way inside the block."""
    command = [str(python), str(WORKER), way.engine, str(directory), str(threads)]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
    }
    with subprocess.Popen(
        [*command, json.dumps(dict(way.opening))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        worker = Worker(process)
        worker.line()
        yield worker


def own_python() -> Path:
    """Return the interpreter of this process, which has skipdec and transformers."""
    return Path(sys.executable)
