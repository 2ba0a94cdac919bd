"""Prompts and results as lines of JSON.

A line in, with any fields of SamplingParams beside the prompt, and its line out:

    {"id": "a1", "prompt": "name[Alimentum], food[", "temperature": 0, "max_tokens": 3}
    {"id": "a1", "text": "French], area", "token_ids": [84, 269, 12], "finish_reason": "length",
     "layers_per_token": [12, 8, 8]}

A bad line gives ``{"id": …, "line": 7, "error": "…"}``, ``id`` only where it could be read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

from ...engines.documents import parse_json
from ...engines.errors import UsageError, did_you_mean
from ..batches.prompts import Prompt
from ..tokens.outputs import CompletionOutput, Logprob
from ..tokens.sampling import SamplingParams

RecordId = str | int

_PROMPT_FIELDS = ("prompt", "prompt_token_ids")
_MAX_PROBLEMS = 20  # shown of one line
_MAX_LINE = 16 * 2**20  # bytes


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


def split_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file or pipe; of one that is too long for ``read_records``, a part."""
    while line := file.readline(_MAX_LINE + 2):
        rest = line
        while len(rest) > _MAX_LINE and not rest.endswith(b"\n"):
            rest = file.readline(_MAX_LINE + 2)
        yield line


def read_records(lines: Iterable[bytes], defaults: SamplingParams) -> Iterator[Record | BadRecord]:
    """Parse every line that is not blank; ``defaults`` hold where a line says nothing."""
    first_lines: dict[RecordId, int] = {}
    for number, line in enumerate(lines, start=1):
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")  # byte-order mark
        if not line.strip():
            continue
        record = _parse(number, line, defaults)
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
    """Return one line of JSON with its line feed, in UTF-8."""
    return json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _parse(number: int, line: bytes, defaults: SamplingParams) -> Record | BadRecord:
    if len(line) > _MAX_LINE + 1:
        return BadRecord(number, None, f"is longer than {_MAX_LINE:,} bytes")
    try:
        document = parse_json(line, UsageError, subject="line")
    except UsageError as error:
        return BadRecord(number, None, joined(error.problems))
    if not isinstance(document, dict):
        return BadRecord(number, None, f"is {type(document).__name__}; allowed: a JSON object")
    record_id = document.pop("id", None)
    if not _is_id(record_id):
        return BadRecord(number, None, f"id is {record_id!r:.80}; allowed: a text or an integer")
    prompts = {field: document.pop(field) for field in _PROMPT_FIELDS if field in document}
    problems = _prompt_problems(prompts, document)
    params = defaults
    try:
        params = defaults.updated(**document) if document else defaults
    except UsageError as error:
        problems += error.problems
    if problems:
        return BadRecord(number, record_id, joined(problems))
    (prompt,) = prompts.values()
    return Record(number, record_id, prompt, params)


def json_object(line: bytes) -> dict[str, Any] | None:
    """The object of a line; None for anything else."""
    try:
        document = parse_json(line, UsageError, subject="line")
    except UsageError:
        return None
    return document if isinstance(document, dict) else None


def joined(problems: Sequence[str]) -> str:
    """One text of some problems, which may be as many as a line has keys."""
    more = len(problems) - _MAX_PROBLEMS
    shown = [*problems[:_MAX_PROBLEMS], *([f"and {more} more problems"] if more > 0 else [])]
    return "; ".join(shown)


def _is_id(value: object) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _prompt_problems(prompts: dict[str, object], others: dict[str, object]) -> list[str]:
    if len(prompts) != 1:
        seen = "both are given" if prompts else "both are missing"
        asked = (did_you_mean(key, _PROMPT_FIELDS, among=len(others)) for key in others)
        meant = "" if prompts else next(filter(None, asked), "")
        return [f"prompt and prompt_token_ids: {seen}; {meant}give one of them"]
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
