"""libskipdec in its own process, which runs a benchmark's calls."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...engines.errors import EnvironmentMismatchError, SkipDecError, UsageError
from ..schedule import ExitSchedule
from ..tokens.outputs import CompletionOutput, Drafts, RequestOutput, Timings
from ..tokens.sampling import SamplingParams
from .paths import ONNXRUNTIME_VARIABLE, native_paths, onnxruntime_library

_PROGRAM = "skipdec-calls"
_PASSED = ("temperature", "seed", "max_tokens", "ignore_eos")  # of the sampling parameters


@dataclass(frozen=True)
class NativeRun:
    """One call: its outputs, and where its time went.

    ``draft_seconds`` are part of ``decode_seconds``.
    """

    outputs: list[RequestOutput]
    wall_seconds: float
    decode_seconds: float
    sampling_seconds: float
    draft_seconds: float


class NativeCalls:
    """A bundle opened by the program ``skipdec-calls``, with `Generator.generate`.

    ``description`` names its kernels and threads. It has its own process because ONNX Runtime has
    one thread pool per process, which belongs to Python's engines here.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.description = str(self._answer()["description"])

    @classmethod
    @contextmanager
    def open(
        cls, bundle: Path, *, threads: int | None, max_batch_size: int, draft: str | None = None
    ) -> Iterator[NativeCalls]:
        """Start the program on ``bundle``; it ends with the block.

        With a ``draft``, even "off", each client has its own n-grams and cached prefixes.
        Raises EnvironmentMismatchError if it was not compiled or can't open the bundle.
        """
        program = native_paths().executable.with_name(_PROGRAM)
        library = onnxruntime_library()
        named = {} if library is None else {ONNXRUNTIME_VARIABLE: str(library)}
        command = [str(program), str(bundle), str(threads or 0), str(max_batch_size)]
        if draft is not None:
            command.append(draft)
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=named | os.environ,
            text=True,
        ) as process:
            try:
                yield cls(process)
            finally:
                process.kill()  # it has no state to lose
                process.communicate()  # closes its pipes, also behind a call that it had not read

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, *, schedule: ExitSchedule
    ) -> list[RequestOutput]:
        """Return the outputs of `run`."""
        return self.run(prompts, params, schedule=schedule).outputs

    def run(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        *,
        schedule: ExitSchedule,
        client: str = "",
    ) -> NativeRun:
        """Continue each prompt by up to ``params.max_tokens`` tokens, in one batch.

        Drafts know the texts of the client's earlier calls. Raises UsageError unless ``params``
        have a temperature, a seed, max_tokens, ignore_eos, and nothing else.
        """
        passed = {name: getattr(params, name) for name in _PASSED}
        if params != SamplingParams.fixed(**passed) or None in passed.values():
            raise UsageError(
                "native calls",
                f"are {params!r}; allowed are, and must be given: {', '.join(passed)}",
            )
        call = passed | {
            "client": client,
            "prompts": [list(prompt) for prompt in prompts],
            "schedule": json.dumps(schedule.to_document()),
        }
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # `_answer` tells why the program has ended
            self._process.stdin.write(json.dumps(call) + "\n")
            self._process.stdin.flush()
        answer = self._answer()
        outputs = [
            _request_output(index, tuple(prompt), output)
            for index, (prompt, output) in enumerate(zip(prompts, answer["outputs"], strict=True))
        ]
        return NativeRun(
            outputs,
            wall_seconds=answer["wall_seconds"],
            decode_seconds=answer["decode_seconds"],
            sampling_seconds=answer["sampling_seconds"],
            draft_seconds=answer["draft_seconds"],
        )

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        line = self._process.stdout.readline()
        if not line.endswith("\n"):
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
        finish_reason=output["finish_reason"],
        layers_per_token=tuple(output["layers"]),
        timings=Timings(times[0], steps),
        drafts=Drafts(*output["drafts"]),
    )
    return RequestOutput(str(index), None, prompt, (completion,), finished=True)
