"""Prompts and results as lines of JSON, and the file of results.

A line in, with any fields of SamplingParams beside the prompt, and its line out:

    {"id": "a1", "prompt": "name[Alimentum], food[", "temperature": 0, "max_tokens": 3}
    {"id": "a1", "text": "French], area", "token_ids": [84, 269, 12], "finish_reason": "length",
     "layers_per_token": [12, 8, 8]}

A bad line gives ``{"id": …, "line": 7, "error": "…"}``, ``id`` only where it could be read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ...engines.bundle import replace_file
from ...engines.errors import UsageError
from ..batches.prompts import Prompt
from ..tokens.outputs import CompletionOutput, Logprob
from ..tokens.sampling import SamplingParams

RecordId = str | int

_PROMPT_FIELDS = ("prompt", "prompt_token_ids")
_MAX_PROBLEMS = 20  # shown of one line


@dataclass(frozen=True, slots=True)
class Record:
    """One line in: what to continue and how."""

    line: int  # from 1
    record_id: RecordId
    prompt: Prompt
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class BadRecord:
    """One line in that can't be run."""

    line: int
    record_id: RecordId | None
    error: str


def read_records(lines: Iterable[bytes], defaults: SamplingParams) -> Iterator[Record | BadRecord]:
    """Parse every line that is not blank; ``defaults`` hold where a line says nothing."""
    first_lines: dict[RecordId, int] = {}
    for number, line in enumerate(lines, start=1):
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")  # byte-order mark
        if not line.strip():
            continue
        try:
            record = _parse(number, line, defaults)
        except RecursionError:
            record = BadRecord(number, None, "is not JSON: nested too deeply")
        if record.record_id is not None:
            first = first_lines.setdefault(record.record_id, number)
            if first != number:
                text = f"id {record.record_id!r} was on line {first}; ids must differ"
                record = BadRecord(number, record.record_id, text)
        yield record


def result_line(record_id: RecordId, outputs: Sequence[CompletionOutput]) -> dict[str, Any]:
    """Return the line of one record.

    With one completion its fields stand at the top, with more (``n``) in a list ``outputs``.
    """
    if len(outputs) == 1:
        return {"id": record_id} | _completion(outputs[0])
    listed = [{"index": output.index} | _completion(output) for output in outputs]
    return {"id": record_id, "outputs": listed}


def error_line(record: BadRecord) -> dict[str, Any]:
    """Return the line of a record that could not be run."""
    identity = {} if record.record_id is None else {"id": record.record_id}
    return identity | {"line": record.line, "error": record.error}


def to_bytes(line: dict[str, Any]) -> bytes:
    """Return one line of JSON with its line feed, in UTF-8; half a surrogate pair as JSON's \\u."""
    text = json.dumps(line, ensure_ascii=False, allow_nan=False)
    return text.encode(errors="backslashreplace") + b"\n"


def _parse(number: int, line: bytes, defaults: SamplingParams) -> Record | BadRecord:
    try:
        document = json.loads(line.decode())
    except ValueError as error:
        return BadRecord(number, None, f"is not JSON: {error}")
    if not isinstance(document, dict):
        return BadRecord(number, None, f"is {type(document).__name__}; allowed: a JSON object")
    record_id = document.pop("id", None)
    if not _is_id(record_id):
        return BadRecord(number, None, f"id is {record_id!r:.80}; allowed: a text or an integer")
    if b"\\u" in line and not _is_unicode(document):
        text = "has half a surrogate pair, e.g. \\ud800, which is no Unicode text; leave it out"
        return BadRecord(number, record_id, text)
    prompts = {field: document.pop(field) for field in _PROMPT_FIELDS if field in document}
    problems = _prompt_problems(prompts)
    params = defaults
    try:
        params = defaults.updated(**document) if document else defaults
    except UsageError as error:
        problems += error.problems
    if problems:
        return BadRecord(number, record_id, joined(problems))
    (prompt,) = prompts.values()
    return Record(number, record_id, prompt, params)


def joined(problems: Sequence[str]) -> str:
    """One text of some problems, which may be as many as a line has keys."""
    more = len(problems) - _MAX_PROBLEMS
    shown = [*problems[:_MAX_PROBLEMS], *([f"and {more} more problems"] if more > 0 else [])]
    return "; ".join(shown)


def _is_id(value: object) -> bool:
    if isinstance(value, str):
        return _is_unicode(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _is_unicode(document: object) -> bool:
    """Whether no text in a JSON value has half a surrogate pair."""
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _prompt_problems(prompts: dict[str, object]) -> list[str]:
    if len(prompts) != 1:
        seen = "both are given" if prompts else "both are missing"
        return [f"prompt and prompt_token_ids: {seen}; give one of them"]
    prompt = prompts.get("prompt", "")
    if not isinstance(prompt, str):
        return [f"prompt is {prompt!r:.80}; allowed: a text"]
    token_ids = prompts.get("prompt_token_ids", [])
    if not isinstance(token_ids, list):
        return [f"prompt_token_ids is {token_ids!r:.80}; allowed: a list of integers"]
    return []


def _completion(output: CompletionOutput) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "text": output.text,
        "token_ids": output.token_ids,
        "finish_reason": output.finish_reason,
        "layers_per_token": output.layers_per_token,
    }
    if output.stop_reason is not None:
        fields["stop_reason"] = output.stop_reason
    if output.logprobs is not None:
        fields["cumulative_logprob"] = output.cumulative_logprob
        fields["logprobs"] = [_logprobs(token) for token in output.logprobs]
    return fields


def _logprobs(token: dict[int, Logprob]) -> list[dict[str, Any]]:
    """Candidates for one token, the chosen one first."""
    return [
        {
            "token_id": token_id,
            "logprob": entry.logprob,
            "rank": entry.rank,
            "decoded_token": entry.decoded_token,
        }
        for token_id, entry in token.items()
    ]


class ResultFile:
    """A JSON-lines file that grows by whole flushed chunks.

    Without ``resume`` the file must not exist, unless ``force`` replaces it. With ``resume``,
    results that it holds are in ``done`` and stay. A half-written last line and lines of errors
    are dropped, so that their records run again. The file is open inside the object's with block,
    whose end puts the lines in the order of the input, if interruptions left them in another: the
    file ends as if it had been written at once.

    ``line_of``: the input's line number of each id.

    Raises UsageError if the file exists and neither was asked, or does not belong to this input.
    """

    def __init__(
        self, path: Path, line_of: Mapping[RecordId, int], *, resume: bool, force: bool
    ) -> None:
        if path.exists() and not (resume or force):
            raise UsageError(
                str(path), "exists; --resume continues it, --force replaces it, or name another"
            )
        self._path = path
        self._line_of = line_of
        kept: list[dict[str, Any]] = []
        if resume and path.exists():
            content = path.read_bytes()
            kept = self._kept_results(content)
            repaired = b"".join(map(to_bytes, kept))
            if repaired != content:
                replace_file(path, repaired)
        self.done: frozenset[RecordId] = frozenset(line["id"] for line in kept)
        self._numbers = [line_of[line["id"]] for line in kept]
        self._mode = "ab" if resume else "wb"
        self._file: IO[bytes] | None = None

    def __enter__(self) -> ResultFile:
        self._file = self._path.open(self._mode)
        return self

    def write(self, lines: Sequence[dict[str, Any]]) -> None:
        """Append results and errors and flush them: they survive the end of this process."""
        assert self._file is not None, "the file is open inside its with block only"
        self._file.write(b"".join(map(to_bytes, lines)))
        self._file.flush()
        self._numbers += map(self._number, lines)

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        assert self._file is not None
        self._file.close()
        if kind is None and self._numbers != sorted(self._numbers):
            lines = self._path.read_bytes().splitlines(keepends=True)
            ordered = sorted(zip(self._numbers, lines, strict=True))
            replace_file(self._path, b"".join(line for _, line in ordered))

    def _number(self, line: dict[str, Any]) -> int:
        number: int = line["line"] if "error" in line else self._line_of[line["id"]]
        return number

    def _kept_results(self, content: bytes) -> list[dict[str, Any]]:
        """Return the results in ``content`` that stay."""
        whole = content[: content.rfind(b"\n") + 1]
        kept: dict[RecordId, dict[str, Any]] = {}
        for number, line in enumerate(whole.splitlines(), start=1):
            document = _json_object(line)
            if document is None or not ("error" in document or _has_id(document)):
                raise UsageError(
                    str(self._path), f"line {number} is no result of skipdec generate; remove it"
                )
            if "error" in document:
                continue
            if document["id"] not in self._line_of:
                raise UsageError(
                    str(self._path),
                    f"line {number} has id {document['id']!r}, which the input does not have; "
                    "resume with the input that it was made from",
                )
            kept[document["id"]] = document
        return list(kept.values())


def _has_id(document: dict[str, Any]) -> bool:
    return isinstance(document.get("id"), str | int)


def _json_object(line: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(line)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None
