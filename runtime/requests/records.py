"""Prompts as lines of JSON, for ``generate`` and the load generator.

A line has a prompt and any fields of SamplingParams:

    {"id": "a1", "prompt": "name[Alimentum], food[", "temperature": 0, "max_tokens": 3}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Annotated, Any

from pydantic import ConfigDict, Field, WithJsonSchema

from ...engines.documents import json_kind, parse_json
from ...engines.errors import UsageError, shown
from ..schedule.text import beyond_notation
from ..tokens.sampling import SamplingParams
from .request import Prompt

RecordId = str | int

_MAX_PROBLEMS = 20  # of one line, shown in its message
_MAX_LINE = 16 * 2**20  # bytes
_MAX_SCHEDULE = 500  # characters
_IDS: dict[str, Any] = {"type": "array", "items": {"type": "integer"}}
_MESSAGES: dict[str, Any] = {"type": "array", "items": {"type": "object"}}
_PROMPT: dict[str, Any] = {"anyOf": [{"type": "string"}, _IDS]}


class PromptLine(SamplingParams):
    """The fields of one line; all but the prompt are optional, and unknown ones are refused.

    The caller's defaults apply to sampling fields that a line leaves out.
    """

    model_config = ConfigDict(title="PromptLine")

    id: RecordId | None = Field(
        default=None, description="a text or an integer; by default the number of the line"
    )
    prompt: Annotated[Any, WithJsonSchema(_PROMPT)] = Field(
        default=None, description="a text, or a list of token ids"
    )
    prompt_token_ids: Annotated[Any, WithJsonSchema(_IDS)] = Field(
        default=None, description="a list of token ids, in place of prompt"
    )
    messages: Annotated[Any, WithJsonSchema(_MESSAGES)] = Field(
        default=None, description="a list of messages with role and content, in place of prompt"
    )
    chat_template_kwargs: Annotated[Any, WithJsonSchema({"type": "object"})] = Field(
        default=None, description="an object of variables of the chat template, with messages"
    )
    continue_final_message: bool = Field(
        default=False, description="true: the last of the messages is the beginning of the answer"
    )
    schedule: str | None = Field(
        default=None,
        max_length=_MAX_SCHEDULE,
        description=f"an exit schedule in up to {_MAX_SCHEDULE} characters, not a file's name",
    )

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        names = ("prompt", "prompt_token_ids", "messages")
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            seen = " and ".join(given or names)
            yield f"{seen} are {'given' if given else 'missing'}; give one of them"
        elif not isinstance(self.prompt, str | list | None):
            yield f"prompt is {shown(self.prompt)}; allowed: a text, or token ids"
        elif not isinstance(self.prompt_token_ids, list | None):
            ids = shown(self.prompt_token_ids)
            yield f"prompt_token_ids is {ids}; allowed: a list of token ids"
        elif not isinstance(self.messages, list | None):
            yield f"messages is {shown(self.messages)}; allowed: a list of messages"
        if self.messages is None:
            if self.chat_template_kwargs:
                yield "`chat_template_kwargs` needs `messages`"
            if self.continue_final_message:
                yield "`continue_final_message` needs `messages`"
        if self.schedule is not None and (kind := beyond_notation(self.schedule)):
            yield f"`schedule` is {shown(self.schedule)}, {kind}; give the schedule's text"

    @property
    def content(self) -> Prompt:
        """The prompt: a text, token ids, or messages."""
        if self.messages is not None:
            return {
                "messages": self.messages,
                "chat_template_kwargs": self.chat_template_kwargs,
                "continue_final_message": self.continue_final_message,
            }
        prompt: Prompt = self.prompt_token_ids if self.prompt is None else self.prompt
        return prompt

    @property
    def params(self) -> SamplingParams:
        """The line's sampling parameters."""
        return SamplingParams(**self.given)


@dataclass(frozen=True, slots=True)
class Record:
    """A valid line: its prompt and parameters."""

    line: int  # from 1
    record_id: RecordId
    prompt: Prompt
    params: SamplingParams
    schedule: str | None = None  # None: the caller's
    fields: Mapping[str, Any] = field(default_factory=dict, compare=False)  # as in the line


@dataclass(frozen=True, slots=True)
class BadRecord:
    """An invalid line, and the reason."""

    line: int
    record_id: RecordId | None
    error: str

    def to_dict(self) -> dict[str, Any]:
        """Return ``{"id", "line", "error"}``, without an id that could not be read."""
        identity = {} if self.record_id is None else {"id": self.record_id}
        return identity | {"line": self.line, "error": self.error}


def split_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file or pipe; one that is too long for ``read_records`` is cut."""
    while line := file.readline(_MAX_LINE + 2):
        rest = line
        while len(rest) > _MAX_LINE and not rest.endswith(b"\n"):
            rest = file.readline(_MAX_LINE + 2)
        yield line


def read_records(lines: Iterable[bytes], defaults: SamplingParams) -> Iterator[Record | BadRecord]:
    """Read every line that is not blank; ``defaults`` apply to sampling fields that it leaves out.

    A line without an id gets its number as id. If two lines have the same id, the second is bad.
    """
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


def read_record(
    number: int, fields: dict[str, Any], defaults: SamplingParams
) -> Record | BadRecord:
    """Check the fields of line ``number``."""
    found = fields.get("id")
    record_id = number if found is None else found
    try:
        line = PromptLine(**(defaults.given | SamplingParams.without_nulls(fields)))
    except UsageError as error:
        return BadRecord(number, record_id if _is_id(record_id) else None, joined(error.problems))
    is_plain = fields.keys().isdisjoint(SamplingParams.model_fields)
    params = defaults if is_plain else line.params
    return Record(number, record_id, line.content, params, line.schedule, fields)


def json_object(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a line, or None for anything else."""
    try:
        document = parse_json(line, UsageError, subject="line")
    except UsageError:
        return None
    return document if isinstance(document, dict) else None


def joined(problems: Sequence[str]) -> str:
    """Return problems as one text, shortened, since a line may have a problem for each key."""
    more = len(problems) - _MAX_PROBLEMS
    kept = [*problems[:_MAX_PROBLEMS], *([f"and {more} more problems"] if more > 0 else [])]
    return "; ".join(kept)


def _parse(number: int, line: bytes, defaults: SamplingParams) -> Record | BadRecord:
    if len(line) > _MAX_LINE + 1:
        return BadRecord(number, None, f"is longer than {_MAX_LINE:,} bytes")
    try:
        document = parse_json(line, UsageError, subject="line")
    except UsageError as error:
        return BadRecord(number, None, joined(error.problems))
    if not isinstance(document, dict):
        return BadRecord(number, None, f"is a JSON {json_kind(document)}; allowed: an object")
    return read_record(number, document, defaults)


def _is_id(value: object) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)
