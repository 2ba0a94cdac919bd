"""Drive both runtimes with equal requests, and return results in one form."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from programs import built_program

from skipdec import Generator, SamplingParams
from skipdec.runtime.libskipdec.paths import onnxruntime_library
from skipdec.runtime.schedule.text import parse_schedule
from skipdec.runtime.tokens.outputs import CompletionOutput, Drafts

LIBRARY = onnxruntime_library()


@dataclass(frozen=True)
class TimedRequest:
    """A request sent ``after`` that many deltas of others, cancelled after ``patience``."""

    prompt: str | Sequence[int]
    params: SamplingParams
    schedule: str = "full"
    after: int = 0
    patience: int | None = None


@dataclass(frozen=True)
class Generated:
    """One completion.

    ``ranks`` and ``logprobs``: (token id, rank) of each token's candidates, and their values;
    ``drafts``: passes, drafted and accepted tokens.
    """

    token_ids: tuple[int, ...]
    text: str
    layers: tuple[int, ...]
    finish_reason: str | None
    stop_reason: int | str | None
    ranks: tuple[tuple[tuple[int, int | None], ...], ...] = ()
    logprobs: tuple[tuple[float, ...], ...] = field(default=(), compare=False)
    drafts: tuple[int, int, int] = field(default=(0, 0, 0), compare=False)


class Runtime(Protocol):
    """Runs requests and returns the completions of each."""

    def run(self, requests: Sequence[TimedRequest], **options: object) -> list[list[Generated]]: ...


@dataclass(frozen=True)
class PythonRuntime:
    """Runs each request alone through `Generator.generate`."""

    generator: Generator

    def run(self, requests: Sequence[TimedRequest], **options: object) -> list[list[Generated]]:
        assert not options
        return [[_of_python(output) for output in self._alone(each)] for each in requests]

    def _alone(self, request: TimedRequest) -> Sequence[CompletionOutput]:
        (output,) = self.generator.generate(
            [request.prompt], request.params, schedule=request.schedule
        )
        return output.outputs


@dataclass(frozen=True)
class NativeRuntime:
    """Runs all requests together in libskipdec, by the program generate."""

    bundle: Path
    num_layers: int
    horizon: int | None = None  # for presets without one, if the bundle's schedule has a horizon

    def run(self, requests: Sequence[TimedRequest], **options: object) -> list[list[Generated]]:
        answers = run_native(self.bundle, [self._line(each) for each in requests], **options)
        assert not [answer["error"] for answer in answers if "error" in answer][:5]
        return [[_of_native(output) for output in answer["outputs"]] for answer in answers]

    def _line(self, request: TimedRequest) -> dict[str, Any]:
        params = native_params(request.params)
        line: dict[str, Any] = {"prompt": request.prompt, "params": params, "after": request.after}
        if request.patience is not None:
            line["patience"] = request.patience
        horizon = self.horizon or request.params.max_tokens
        return line | {"schedule": schedule_json(request.schedule, self.num_layers, horizon)}


def native_params(params: SamplingParams) -> dict[str, Any]:
    """Return the parameters for generate.cpp that were given and are not None."""
    given = params.model_dump(mode="json", exclude_unset=True)
    return {name: value for name, value in given.items() if value is not None}


def schedule_json(text: str, num_layers: int, horizon: int | None = None) -> str:
    """Return a schedule as JSON, which libskipdec takes for any schedule."""
    schedule = parse_schedule(text, num_layers=num_layers, horizon=horizon)
    return json.dumps(schedule.to_document())


def run_native(bundle: Path, lines: Sequence[dict[str, Any]], **options: object) -> list[Any]:
    """Return the answers of programs/generate.cpp to ``lines``, in order."""
    done = _generate(bundle, lines, options)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def native_refusal(bundle: Path, **options: object) -> tuple[str, str]:
    """Return the code and message with which libskipdec refuses to open ``bundle``."""
    done = _generate(bundle, (), options)
    assert done.returncode == 1, done.stdout
    code, words = done.stderr.strip().split(": ", 1)
    return code, words


def _generate(
    bundle: Path, lines: Sequence[dict[str, Any]], options: dict[str, Any]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [built_program("generate"), bundle, json.dumps(options)],
        input="".join(json.dumps(line) + "\n" for line in lines),
        env=os.environ | {"SKIPDEC_ONNXRUNTIME": str(LIBRARY)},
        capture_output=True,
        text=True,
        check=False,
    )


@contextmanager
def both(
    bundle: Path, *, horizon: int | None = None, draft: str | None = None
) -> Iterator[tuple[Runtime, Runtime]]:
    """Yield Python's runtime, which uses ``draft``, and libskipdec on the same bundle."""
    with Generator.open(bundle, threads=1, draft=draft) as generator:
        native = NativeRuntime(bundle, generator.model.num_layers, horizon)
        yield PythonRuntime(generator), native


def _of_python(output: CompletionOutput) -> Generated:
    rows = output.logprobs or ()
    return Generated(
        output.token_ids,
        output.text,
        output.layers_per_token,
        output.finish_reason,
        output.stop_reason,
        tuple(tuple((token, entry.rank) for token, entry in row.items()) for row in rows),
        tuple(tuple(entry.logprob for entry in row.values()) for row in rows),
        _counted(output.drafts or Drafts()),
    )


def _counted(drafts: Drafts) -> tuple[int, int, int]:
    return drafts.passes, drafts.drafted, drafts.accepted


def _of_native(output: dict[str, Any]) -> Generated:
    assert output["streamed"] == output["text"]
    rows = output["logprobs"]
    return Generated(
        tuple(output["token_ids"]),
        output["text"],
        tuple(output["layers"]),
        output["finish_reason"],
        output.get("stop_reason"),
        tuple(tuple((token, rank) for token, _, rank in row) for row in rows),
        tuple(tuple(logprob for _, logprob, _ in row) for row in rows),
        tuple(output["drafts"]),
    )
