"""Read prompts and completions from the user's files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ...engines.checking import Option, ValidatedConfig, field_problems
from ...engines.errors import UsageError
from ...engines.manifest import PROMPT_PLACEHOLDER
from .chats import COLUMN as MESSAGES
from .chats import Prompt, read_conversation
from .rows import READERS, Row, open_text, raise_problems

LongPrompts = Literal["refuse", "drop", "cut"]
PresetName = Literal["e2e", "tldr", "cnn-dm"]
DataFormat = Literal["auto", "jsonl", "csv", "text", "dataset"]
_FORMAT_OF_SUFFIX: Mapping[str, DataFormat] = {".jsonl": "jsonl", ".csv": "csv", ".txt": "text"}
_SURROGATE = re.compile("[\ud800-\udfff]")  # JSON escapes can produce a lone one
_PLACEHOLDERS = {"prompt_template": "{prompt}", "completion_template": "{completion}"}
_WORD = re.compile(r"\s*\S+")  # includes the white space before it
DEFAULT_PASSAGE_WORDS = "24+120"
DEFAULT_OWN_TEXTS = 5000
_OWN_TEXTS = re.compile(r"self(?::(.*))?")
_NUMBER = re.compile("[1-9][0-9]{,8}")  # from 1 on


@dataclass(frozen=True)
class Preset:
    """The columns of prompt and completion, and templates for their texts.

    ``{prompt}`` and ``{completion}`` in the templates are placeholders for the columns' texts. If
    ``prompt_template`` is None, prompts go into the model's own template, if it has one.
    """

    prompt_column: str
    completion_column: str
    prompt_template: str | None = None
    completion_template: str = "{completion}"

    @property
    def names(self) -> tuple[str, ...]:
        """The columns, prompt first; a single name if both are the same."""
        return tuple(dict.fromkeys((self.prompt_column, self.completion_column)))

    def prompt(self, text: str) -> str:
        """Return ``text`` in the prompt template, if there is one."""
        template = self.prompt_template
        return text if template is None else template.replace(PROMPT_PLACEHOLDER, text)

    def completion(self, text: str) -> str:
        """Return ``text`` in the completion template."""
        return self.completion_template.replace("{completion}", text)


DEFAULT = Preset("prompt", "completion")
PRESETS: dict[PresetName, Preset] = {
    # E2E NLG: a meaning representation and one of its human references per row.
    "e2e": Preset("mr", "ref"),
    # Reddit TL;DR (Webis-TLDR-17): a post and its author's summary.
    "tldr": Preset("content", "summary", "{prompt}\nTL;DR:", " {completion}"),
    # CNN/DailyMail: an article and its highlights.
    "cnn-dm": Preset("article", "highlights", "{prompt}\nTL;DR:", " {completion}"),
}


@dataclass(frozen=True)
class PassageWords:
    """Numbers of words of a passage in its prompt and in its completion, each at least 1."""

    prompt: int
    completion: int

    @classmethod
    def parse(cls, text: str) -> PassageWords:
        """Parse ``24+120``. Raises UsageError for anything else, including zero words."""
        numbers = text.split("+")
        if len(numbers) != 2 or not all(map(_NUMBER.fullmatch, numbers)):
            raise UsageError(
                "passage_words",
                f"is {text!r:.40}; allowed: PROMPT+COMPLETION, 1 word or more each, e.g. 24+120",
            )
        return cls(*map(int, numbers))


def split_passages(text: str, words: PassageWords) -> Iterator[tuple[str, str, int]]:
    """Cut ``text`` into prompts and completions, each with the line of its first word.

    Each word includes the white space before it, so that the passages joined are the beginning of
    the text, and completions start the way byte-level tokenizers expect. An incomplete last passage
    is dropped.

    >>> list(split_passages("To be, or not\\nto be", PassageWords(1, 2)))
    [('To', ' be, or', 1), (' not', '\\nto be', 1)]
    """
    line = 1
    found = _WORD.finditer(text)
    total = words.prompt + words.completion
    while len(parts := [match.group() for match in islice(found, total)]) == total:
        gap = len(parts[0]) - len(parts[0].lstrip())
        start = line + parts[0].count("\n", 0, gap)
        prompt, completion = "".join(parts[: words.prompt]), "".join(parts[words.prompt :])
        yield prompt, completion, start
        line += prompt.count("\n") + completion.count("\n")


@dataclass(frozen=True)
class Example:
    """One prompt with one completion; ``source``, for messages, is like ``dev.csv, line 7``.

    The prompt of a chat is the conversation before its last answer, which is the completion.
    ``ends`` is False for a passage from a longer text: no end-of-text token follows it.
    """

    prompt: Prompt
    completion: str
    source: str
    ends: bool = True


class DataConfig(ValidatedConfig):
    """A data file, its format, and which of its columns to read.

    ``format`` "auto" depends on the name: ``.jsonl``, ``.csv``, ``.txt``, or a directory that
    Hugging Face datasets wrote (``save_to_disk``). Columns and templates left at None come from
    ``preset``; without a preset they are the columns ``prompt`` and ``completion``, unchanged.
    Templates wrap a column's text: ``prompt_template="{prompt}<sep>"``. If neither gives a prompt
    template, prompts go into the template with which the model was tuned, if any.

    A row with ``messages`` instead of these columns is a chat that ends in an assistant's answer.
    The model's own chat template turns the messages before it into the prompt.

    A plain text has no columns. It is cut into passages of ``passage_words``: the default "24+120"
    makes a prompt of 24 words and a completion of the next 120.

    ``long_prompts`` says what to do with rows longer than the model's maximum; "refuse" raises an
    error that names their lines.

    The path ``self`` or ``self:20000`` is not a file: the model itself writes that many texts, by
    default 5,000. Only `tune` and `ngrams` support this, without any other field.
    """

    path: Annotated[Path, Option("--data", metavar="FILE")] = Field(
        description=".jsonl, .csv, .txt, or a dataset"
    )
    format: DataFormat = Field(default="auto", description="(by the file's name)")
    preset: Annotated[PresetName | None, Option()] = Field(
        default=None, description="columns and templates of a known data set"
    )
    prompt_column: str | None = Field(default=None, description="(the preset's, or prompt)")
    completion_column: str | None = Field(default=None, description="(the preset's, or completion)")
    prompt_template: Annotated[str | None, Option()] = Field(
        default=None, description="e.g. '{prompt}<sep>' (the preset's, or model's)"
    )
    completion_template: str | None = Field(
        default=None, description="e.g. ' {completion}' ({completion})"
    )
    passage_words: str | None = Field(
        default=None, description="PROMPT+COMPLETION, how a text is cut (24+120)"
    )
    long_prompts: LongPrompts = Field(
        default="refuse", description="drop rows, or cut prompts, that are too long"
    )

    def _problems(self) -> Iterator[str]:
        if self.passage_words is not None:
            yield from field_problems("passage_words", PassageWords.parse, self.passage_words)
        for field, placeholder in _PLACEHOLDERS.items():
            template = getattr(self, field)
            if template is not None and template.count(placeholder) != 1:
                yield f"`{field}` is {template!r}; allowed: a text with {placeholder} once"

        if (own := _OWN_TEXTS.fullmatch(str(self.path))) is not None:
            count = own[1]
            if count is not None and not _NUMBER.fullmatch(count):
                yield f"`path` is {own[0]:.40}; allowed: self, or self:N with N from 1"
            for field, described in type(self).model_fields.items():
                value = getattr(self, field)
                if field != "path" and value != described.default:
                    yield f"`{field}` is {value!r}; leave it out, the model writes its data itself"

    @property
    def own_texts(self) -> int | None:
        """The number of texts that the model writes itself; None for texts from a file."""
        own = _OWN_TEXTS.fullmatch(str(self.path))
        return None if own is None else int(own[1] or DEFAULT_OWN_TEXTS)

    @property
    def names_columns(self) -> bool:
        """True if columns were chosen, so that a row's ``messages`` are not read as a chat."""
        return (self.preset, self.prompt_column, self.completion_column) != (None, None, None)

    def columns(self) -> Preset:
        """Return the preset's columns and templates, overridden by explicit ones."""
        preset = DEFAULT if self.preset is None else PRESETS[self.preset]
        given = {name: getattr(self, name) for name in vars(preset)}
        return replace(preset, **{name: text for name, text in given.items() if text is not None})


def load_examples(config: DataConfig) -> list[Example]:
    """Read every row, in order.

    >>> load_examples(DataConfig(path="dev.csv", preset="e2e"))[0]
    Example(prompt='name[Alimentum], area[riverside]', completion='…', source='dev.csv, line 2')

    Raises one UsageError that names the lines of bad rows (the first 20, and the number of others):
    empty prompts or completions, and broken JSON. It names a missing column once, with suggestions.
    It is also raised if there are no rows, or if an option does not apply to the format.
    """
    data_format = _resolve_format(config)
    _check_options(config, data_format)
    if data_format == "text":
        return _load_passages(config)
    columns = config.columns()
    examples: list[Example] = []
    problems: list[str] = []
    lacking: dict[str, list[Row]] = {}  # rows without a column, by its name
    for row in READERS[data_format](config.path):
        if not row.problem and _is_chat(row, config):
            try:
                examples.append(_chat_example(row, config))
            except UsageError as error:
                problems += [f"{row.source}: {error.subject} {text}" for text in error.problems]
            continue
        found = [row.problem] if row.problem else _row_problems(row.columns, columns)
        problems += [f"{row.source}: {problem}" for problem in found]
        missing = [name for name in columns.names if not row.problem and name not in row.columns]
        for name in missing:
            lacking.setdefault(name, []).append(row)
        if not found and not missing:
            prompt = columns.prompt(row.columns[columns.prompt_column])
            completion = columns.completion(row.columns[columns.completion_column])
            examples.append(Example(prompt, completion, row.source))
    problems = [*_missing_columns(lacking), *problems]
    if not examples and not problems:
        problems = [f"{config.path} has no rows; give prompts with completions"]
    raise_problems("data", problems)
    return examples


def _is_chat(row: Row, config: DataConfig) -> bool:
    return (
        MESSAGES in row.columns
        and not config.names_columns
        and not all(name in row.columns for name in DEFAULT.names)
    )


def _chat_example(row: Row, config: DataConfig) -> Example:
    """Return the example of a chat. Raises UsageError for one that can't be used."""
    for name in _PLACEHOLDERS:
        if (template := getattr(config, name)) is not None:
            raise UsageError(
                MESSAGES, f"go into the chat template; leave out {name}, which is {template!r}"
            )
    prompt, answer = read_conversation(row.columns)
    if _SURROGATE.search(str(prompt) + answer):
        raise UsageError(MESSAGES, "hold half of a surrogate pair, which is not a character")
    return Example(prompt, answer, row.source)


def _resolve_format(config: DataConfig) -> DataFormat:
    path = config.path
    if config.own_texts is not None:
        raise UsageError(
            f"data {path}",
            "is written by the model, which only skipdec tune and ngrams can do; give a file",
        )
    if not path.exists():
        raise UsageError(
            f"data {path}", "does not exist; give a .jsonl, .csv or .txt file, or a dataset"
        )
    if config.format != "auto":
        return config.format
    if path.is_dir():
        return "dataset"
    if path.suffix.lower() not in _FORMAT_OF_SUFFIX:
        raise UsageError(
            f"data {path}",
            f"ends in {path.suffix!r}, not a known format; allowed: "
            f"{', '.join(_FORMAT_OF_SUFFIX)}, a directory; or name it: jsonl, csv, text, dataset",
        )
    return _FORMAT_OF_SUFFIX[path.suffix.lower()]


def _check_options(config: DataConfig, data_format: DataFormat) -> None:
    """Raise UsageError for options of plain text given with rows, and vice versa."""
    refused, reason = ["passage_words"], "only a text is cut into passages"
    if data_format == "text":
        refused, reason = ["preset", "prompt_column", "completion_column"], "a text has no columns"
    raise_problems(
        f"data {config.path}",
        [
            f"{name} is {value!r}, and its format is {data_format}; {reason}, leave it out"
            for name in refused
            if (value := getattr(config, name)) is not None
        ],
    )


def _load_passages(config: DataConfig) -> list[Example]:
    """Cut a plain text into passages, in order; an incomplete last one is left out."""
    words = PassageWords.parse(config.passage_words or DEFAULT_PASSAGE_WORDS)
    with open_text(config.path) as file:
        text = file.read()
    columns = config.columns()
    examples = [
        Example(
            columns.prompt(prompt),
            columns.completion(completion),
            f"{config.path.name}, line {line}",
            ends=False,
        )
        for prompt, completion, line in split_passages(text, words)
    ]
    if not examples:
        raise UsageError(
            f"data {config.path}",
            f"has {len(text.split())} words; a passage takes {words.prompt} + {words.completion}; "
            "give a longer text or a smaller passage_words",
        )
    return examples


def _missing_columns(lacking: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    """Yield one problem per column; the last one suggests what the existing columns may be."""
    for index, (name, rows) in enumerate(lacking.items(), start=1):
        row, others = rows[0], len(rows) - 1
        more = "has 1 other row" if others == 1 else f"have {others:,} other rows"
        also = f", nor {more}" if others else ""
        there = ", ".join(map(repr, row.columns))
        advice = f"; {_column_advice(row)}" if index == len(lacking) else ""
        yield f"{row.source}: has no {name!r}{also}; its columns are {there}{advice}"


def _column_advice(row: Row) -> str:
    for name, preset in PRESETS.items():
        if row.columns.keys() >= set(preset.names):
            return f"--preset {name} reads these"
    return "name yours with the data's prompt_column and completion_column"


def _row_problems(row: Mapping[str, Any], columns: Preset) -> list[str]:
    """Return the problems of the columns that exist."""
    problems = []
    for name, value in ((name, row[name]) for name in columns.names if name in row):
        if not isinstance(value, str):
            problems.append(f"{name!r} is {value!r:.40}; allowed: a text")
        elif not value.strip():
            problems.append(f"{name!r} is empty")
        elif _SURROGATE.search(value):
            problems.append(f"{name!r} holds half of a surrogate pair, which is not a character")
    return problems
