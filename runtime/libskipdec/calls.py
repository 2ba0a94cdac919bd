"""libskipdec in its own process, which runs a benchmark's calls."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...engines.errors import EnvironmentMismatchError, SkipDecError, UsageError
from ..schedule import ExitSchedule
from ..schedule.bundle import plan_document
from ..tokens.outputs import CompletionOutput, RequestOutput, Timings
from ..tokens.sampling import SamplingParams
from .paths import ONNXRUNTIME_VARIABLE, native_paths

_PROGRAM = "skipdec-calls"


class NativeCalls:
    """A bundle opened by the program ``skipdec-calls``, with a greedy `Generator.generate`.

    ``description`` names its kernels and threads. It has its own process because ONNX Runtime has
    one thread pool per process, which belongs to Python's engines here.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.description = str(self._answer()["description"])

    @classmethod
    @contextmanager
    def open(
        cls, bundle: Path, *, threads: int | None, max_batch_size: int
    ) -> Iterator[NativeCalls]:
        """Start the program on ``bundle``; it ends with the block.

        Raises EnvironmentMismatchError if it was not compiled or can't open the bundle.
        """
        from ...engines.backends.ort import onnxruntime_library

        program = native_paths().executable.with_name(_PROGRAM)
        environment = os.environ | {ONNXRUNTIME_VARIABLE: str(onnxruntime_library())}
        command = [str(program), str(bundle), str(threads or 0), str(max_batch_size)]
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
        ) as process:
            try:
                yield cls(process)
            finally:
                process.kill()  # it has no state to lose

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, *, schedule: ExitSchedule
    ) -> list[RequestOutput]:
        """Continue each prompt by ``params.max_tokens`` tokens, in one batch.

        Raises UsageError unless ``params`` are greedy and ignore the end of text.
        """
        if not (params.greedy and params.ignore_eos and params.max_tokens):
            raise UsageError("native calls", "are greedy, with ignore_eos and max_tokens")
        call = {
            "prompts": [list(prompt) for prompt in prompts],
            "max_tokens": params.max_tokens,
            "schedule": json.dumps({"plan": plan_document(schedule)}),
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(call) + "\n")
        self._process.stdin.flush()
        outputs = self._answer()["outputs"]
        return [
            _request_output(index, tuple(prompt), output)
            for index, (prompt, output) in enumerate(zip(prompts, outputs, strict=True))
        ]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        line = self._process.stdout.readline()
        if not line:
            message = self._process.stderr.read().strip() or "has ended"
            raise EnvironmentMismatchError(_PROGRAM, message)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise SkipDecError(_PROGRAM, str(answer["error"]))
        return answer


def _request_output(index: int, prompt: tuple[int, ...], output: dict[str, Any]) -> RequestOutput:
    times: list[float] = output["token_seconds"]
    steps = tuple(later - earlier for earlier, later in pairwise(times))
    completion = CompletionOutput(
        index=0,
        text="",
        token_ids=tuple(output["token_ids"]),
        finish_reason="length",
        layers_per_token=tuple(output["layers"]),
        timings=Timings(times[0], steps, sum(steps)),
    )
    return RequestOutput(str(index), None, prompt, (completion,), finished=True)
