"""Results of ``skipdec generate`` as lines of JSON, and the file of ``--output``.

{"id": "a1", "text": "Alimentum is a", "token_ids": [603, 289, 274], "finish_reason": "length",
 "layers_per_token": [12, 8, 8], "layer_ranges": {"8": [[0, 0], [5, 11]], "12": [[0, 11]]}}
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from ...engines.bundle import EngineBundle, place_problems, replace_file
from ...engines.bundle.place import WriterLock
from ...engines.documents import read_json
from ...engines.errors import BundleError, SkipDecError, UsageError
from ..requests.records import RecordId, json_object
from ..schedule import ExitSchedule
from ..schedule.bundle import bundle_schedule
from ..schedule.text import format_schedule
from ..tokens.outputs import CompletionOutput, RequestOutput
from .options import GenerateOptions


def run_parameters(options: GenerateOptions) -> dict[str, Any]:
    """Return the parameters that all texts of a run share, as a JSON object.

    ``schedule`` is the text of the option, or by default of the bundle's own schedule.
    """
    bundle = EngineBundle.open(options.bundle)
    schedule = options.opening.schedule
    if schedule is None:
        schedule = bundle_schedule(bundle)
    if isinstance(schedule, ExitSchedule):
        schedule = format_schedule(schedule)
    return {
        "bundle": bundle.manifest.digest,
        "schedule": schedule,
        "raw_prompt": options.opening.raw_prompts,
        **options.params.to_dict(),
    }


class ResultFile:
    """A JSON-lines file that grows by whole flushed chunks, with ``.NAME.run.json`` beside it.

    Without ``resume`` the file must not exist, unless ``force`` replaces it. With ``resume``, its
    results stay and their ids are in ``done``. A half-written last line and lines of errors are
    dropped, so that their records run again. Nothing changes before the first ``write`` or the end.

    As a context manager it locks out other writers. At its end it sorts the lines into the order of
    the input, which interrupted runs may have changed.

    ``line_of`` maps ids to line numbers of the input. ``parameters`` are those of `run_parameters`;
    ``.NAME.run.json`` holds them, and ``resume`` compares them.

    Raises UsageError if the file exists without ``resume`` or ``force``, can't be written, does not
    belong to this input, or has results of other parameters; BundleError if another process writes;
    SkipDecError if the disk is full or gone.
    """

    def __init__(
        self,
        path: Path,
        line_of: Mapping[RecordId, int],
        parameters: Mapping[str, Any],
        *,
        resume: bool,
        force: bool,
    ) -> None:
        self._shown = str(path)
        try:
            self._path = path.resolve()
        except (OSError, RuntimeError, ValueError) as error:  # too long, a loop of links, a null
            raise UsageError(self._shown, f"can't be written ({error})") from error
        with _named_errors(self._shown, UsageError):
            problems = place_problems(self._path, force=True)
            if self._path.exists() and not os.access(self._path, os.W_OK):
                problems.append("can't be written: no permission to write it")
            if self._path.is_file() and not (resume or force):
                problems.append(
                    "exists; --resume continues it, --force replaces it, or name another"
                )
            if problems:
                raise UsageError(self._shown, *problems)
        self._run = self._path.with_name(f".{self._path.name}.run.json")
        self._line_of = line_of
        self._parameters = dict(parameters)
        self._resume = resume
        self._held = ExitStack()
        self._file: IO[bytes] | None = None
        self._numbers: list[int] = []
        self.done: frozenset[RecordId] = frozenset()

    def __enter__(self) -> ResultFile:
        with _named_errors(self._shown, SkipDecError):
            self._held.enter_context(WriterLock(self._path))
            if self._resume and self._path.exists():
                try:
                    self._continue()
                except BaseException:
                    self._held.close()
                    raise
        return self

    def check_bundle(self, digest: str) -> None:
        """Raise BundleError unless ``digest`` equals that in ``parameters``."""
        if digest != self._parameters["bundle"]:
            raise BundleError(
                self._shown, "the bundle was replaced while it was being opened; run it again"
            )

    def write(self, lines: Sequence[dict[str, Any]]) -> None:
        """Append results and errors, which survive the end of this process.

        Raises SkipDecError if the disk is full or gone; earlier lines stay.
        """
        with _named_errors(self._shown, SkipDecError, "; its lines stay: --resume continues it"):
            file = self._opened()
            content = memoryview(b"".join(map(to_bytes, lines)))
            while content:  # an unbuffered file may write only a part
                content = content[file.write(content) :]
        self._numbers += (
            line["line"] if "error" in line else self._line_of[line["id"]] for line in lines
        )

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        with self._held, _named_errors(self._shown, SkipDecError):
            if kind is None:
                self._opened()
            if kind is None and self._numbers != sorted(self._numbers):
                lines = self._path.read_bytes().splitlines(keepends=True)
                ordered = sorted(zip(self._numbers, lines, strict=True))
                replace_file(self._path, b"".join(line for _, line in ordered))

    def _opened(self) -> IO[bytes]:
        """Return the file; the first call opens it, anew or to append, and writes parameters."""
        if self._file is None:
            mode = "ab" if self._resume else "wb"
            self._file = self._held.enter_context(self._path.open(mode, buffering=0))
            content = json.dumps(self._parameters, indent=2, ensure_ascii=False) + "\n"
            if not self._run.exists() or self._run.read_bytes() != content.encode():
                replace_file(self._run, content.encode())
        return self._file

    def _continue(self) -> None:
        """Take over the results in the file."""
        content = self._path.read_bytes()
        kept = self._kept_results(content)
        if kept:
            self._check_parameters()
        repaired = b"".join(map(to_bytes, kept))
        if repaired != content:
            replace_file(self._path, repaired)
        self.done = frozenset(line["id"] for line in kept)
        self._numbers = [self._line_of[line["id"]] for line in kept]

    def _check_parameters(self) -> None:
        """Raise UsageError if parameters differ; a file without ``.NAME.run.json`` passes."""
        if not self._run.exists():
            return
        remedy = "remove it to resume without comparing parameters"
        recorded = read_json(self._run, UsageError, remedy=remedy)
        if not isinstance(recorded, dict):
            raise UsageError(str(self._run), f"is not a JSON object; {remedy}")
        before, now = recorded, self._parameters
        if problems := [
            f"{name} was {_shown(before, name)} and is {_shown(now, name)}"
            for name in sorted(before | now)
            if before.get(name) != now.get(name)
        ]:
            raise UsageError(
                self._shown,
                *problems,
                "its results have other parameters; --resume with those, --force to start again, "
                "or name another file",
            )

    def _kept_results(self, content: bytes) -> list[dict[str, Any]]:
        """Return the results in ``content``, without lines of errors."""
        whole = content[: content.rfind(b"\n") + 1]
        kept: dict[RecordId, dict[str, Any]] = {}
        for number, line in enumerate(whole.splitlines(), start=1):
            document = json_object(line)
            has_id = document is not None and isinstance(document.get("id"), str | int)
            if document is None or not ("error" in document or has_id):
                raise UsageError(
                    self._shown, f"line {number} is not a result of skipdec generate; remove it"
                )
            if "error" in document:
                continue
            if document["id"] not in self._line_of:
                raise UsageError(
                    self._shown,
                    f"line {number} has id {document['id']!r}, which the input does not have; "
                    "resume with the input of its results",
                )
            kept[document["id"]] = document
        return list(kept.values())


@contextmanager
def _named_errors(subject: str, raises: type[SkipDecError], advice: str = "") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise raises(subject, f"can't be written ({reason}){advice}") from error


def _shown(parameters: Mapping[str, Any], name: str) -> str:
    value = parameters.get(name)
    return f"{str(value)[:12]}…" if name == "bundle" else f"{value!r:.80}"


def result_line(record_id: RecordId, request: RequestOutput) -> dict[str, Any]:
    """Return the line of one record.

    The fields of a single completion are at the top level, those of several in a list ``outputs``.
    """
    ranges = {"layer_ranges": dict(sorted(request.layer_ranges.items()))}
    if len(request.outputs) == 1:
        return {"id": record_id} | _completion(request.outputs[0]) | ranges
    listed = [{"index": output.index} | _completion(output) for output in request.outputs]
    return {"id": record_id, "outputs": listed} | ranges


def to_bytes(line: dict[str, Any]) -> bytes:
    """Return one line of JSON with its line feed, in UTF-8."""
    return json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _completion(output: CompletionOutput) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "text": output.text,
        "token_ids": output.token_ids,
        "finish_reason": output.finish_reason,
        "layers_per_token": output.layers_per_token,
    }
    if output.stop_reason is not None:
        fields["stop_reason"] = output.stop_reason
    if output.drafts is not None:
        fields["drafts"] = output.drafts.to_dict()
    if output.logprobs is not None:
        fields["cumulative_logprob"] = output.cumulative_logprob
        fields["logprobs"] = [  # the candidates of each token, the chosen one first
            [{"token_id": token_id} | entry.to_dict() for token_id, entry in token.items()]
            for token in output.logprobs
        ]
    return fields
