"""Prompts and their completions from the user's own files."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Annotated, Any, Literal

from pydantic import Field

from ...engines.checking import Option, ValidatedConfig
from ...engines.errors import MissingExtraError, UsageError
from .long_prompts import LongPrompts
from .passages import (
    DEFAULT,
    DEFAULT_PASSAGE_WORDS,
    PRESETS,
    PassageWords,
    Preset,
    PresetName,
    split_passages,
)

DataFormat = Literal["auto", "jsonl", "csv", "text", "dataset"]

MAX_PROBLEMS_SHOWN = 20

_FORMAT_OF_SUFFIX: Mapping[str, DataFormat] = {".jsonl": "jsonl", ".csv": "csv", ".txt": "text"}
_SURROGATE = re.compile("[\ud800-\udfff]")  # JSON's escapes can write one alone
_PLACEHOLDERS = {"prompt_template": "{prompt}", "completion_template": "{completion}"}


@dataclass(frozen=True)
class Example:
    """One prompt with one completion; ``source`` is for messages: ``dev.csv, line 7``.

    ``ends`` is False for a passage of a text that goes on: no end of text follows it.
    """

    prompt: str
    completion: str
    source: str
    ends: bool = True


class DataConfig(ValidatedConfig):
    """Which file, and which of its columns.

    ``format`` "auto" goes by the name: ``.jsonl``, ``.csv``, ``.txt``, or a directory that Hugging
    Face datasets wrote (``save_to_disk``). What is None comes from ``preset``, and without one from
    the columns ``prompt`` and ``completion`` as they are. Templates wrap a column's text:
    ``prompt_template="{prompt}<sep>"``.

    A plain text has no columns. It is cut into passages of ``passage_words``: "24+120", the
    default, makes a prompt of 24 words and a completion of the 120 words behind them.

    ``long_prompts`` is what becomes of rows longer than the model: "refuse" names their lines.
    """

    path: Annotated[Path, Option("--data", metavar="FILE")] = Field(
        description=".jsonl, .csv, .txt, or a dataset"
    )
    format: Annotated[DataFormat, Option(show_default=False)] = Field(
        default="auto", description="(by the file's name)"
    )
    preset: Annotated[PresetName | None, Option()] = Field(
        default=None, description="columns and templates of a known data set"
    )
    prompt_column: Annotated[str | None, Option()] = Field(
        default=None, description="(the preset's, or prompt)"
    )
    completion_column: Annotated[str | None, Option()] = Field(
        default=None, description="(the preset's, or completion)"
    )
    prompt_template: Annotated[str | None, Option()] = Field(
        default=None, description="e.g. '{prompt}<sep>' ({prompt})"
    )
    completion_template: Annotated[str | None, Option()] = Field(
        default=None, description="e.g. ' {completion}' ({completion})"
    )
    passage_words: Annotated[str | None, Option()] = Field(
        default=None, description="PROMPT+COMPLETION, how a text is cut (24+120)"
    )
    long_prompts: Annotated[LongPrompts, Option()] = Field(
        default="refuse", description="drop rows, or cut prompts, that are too long"
    )

    def _problems(self) -> Iterator[str]:
        if self.passage_words is not None:
            try:
                PassageWords.parse(self.passage_words)
            except UsageError as error:
                yield from (f"`{error.subject}` {problem}" for problem in error.problems)
        for field, placeholder in _PLACEHOLDERS.items():
            template = getattr(self, field)
            if template is not None and template.count(placeholder) != 1:
                yield f"`{field}` is {template!r}; allowed: a text with {placeholder} once"

    def columns(self) -> Preset:
        """The preset's columns and templates, with those that are given in their place."""
        preset = DEFAULT if self.preset is None else PRESETS[self.preset]
        given = {name: getattr(self, name) for name in vars(preset)}
        return replace(preset, **{name: text for name, text in given.items() if text is not None})


@dataclass(frozen=True)
class _Row:
    """One row as read: its columns, or why it can't be read."""

    source: str
    columns: Mapping[str, Any]
    problem: str | None = None


def load_examples(config: DataConfig) -> list[Example]:
    """Read every row, in order.

    >>> load_examples(DataConfig(path="dev.csv", preset="e2e"))[0]
    Example(prompt='name[Alimentum], area[riverside]', completion='…', source='dev.csv, line 2')

    Raises one UsageError that names all bad rows by line (20 of them, then their number): a
    missing column, an empty prompt or completion, broken JSON; also where there is no row at all,
    and where an option does not go with the format.
    """
    data_format = _resolve_format(config)
    _check_options(config, data_format)
    if data_format == "text":
        return _load_passages(config)
    columns = config.columns()
    examples: list[Example] = []
    problems: list[str] = []
    for row in _READERS[data_format](config.path):
        found = [row.problem] if row.problem else _row_problems(row.columns, columns)
        problems += [f"{row.source}: {problem}" for problem in found]
        if not found:
            prompt = columns.prompt_template.replace("{prompt}", row.columns[columns.prompt_column])
            completion = columns.completion_template.replace(
                "{completion}", row.columns[columns.completion_column]
            )
            examples.append(Example(prompt, completion, row.source))
    if not examples and not problems:
        problems = [f"{config.path} has no rows; give prompts with completions"]
    raise_problems("data", problems)
    return examples


def raise_problems(subject: str, problems: list[str]) -> None:
    """Raise a UsageError with the first problems and the number of the others, if there are any."""
    if problems:
        shown = problems[:MAX_PROBLEMS_SHOWN]
        if hidden := len(problems) - len(shown):
            shown.append(f"and {hidden} more")
        raise UsageError(subject, *shown)


def group_references(examples: Iterable[Example]) -> list[tuple[str, tuple[str, ...]]]:
    """Each distinct prompt with all its completions, in the order in which prompts first appear.

    >>> group_references([Example("a", "1", ""), Example("b", "2", ""), Example("a", "3", "")])
    [('a', ('1', '3')), ('b', ('2',))]
    """
    groups: dict[str, list[str]] = {}
    for example in examples:
        groups.setdefault(example.prompt, []).append(example.completion)
    return [(prompt, tuple(references)) for prompt, references in groups.items()]


def _resolve_format(config: DataConfig) -> DataFormat:
    path = config.path
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
            f"ends in {path.suffix!r}, which names no format; allowed: "
            f"{', '.join(_FORMAT_OF_SUFFIX)}, a directory; or name it: jsonl, csv, text, dataset",
        )
    return _FORMAT_OF_SUFFIX[path.suffix.lower()]


def _check_options(config: DataConfig, data_format: DataFormat) -> None:
    """Raise UsageError for options of texts given with rows, and the other way round."""
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
    """Every passage of a plain text, in order; the last, short one is left out."""
    words = DEFAULT_PASSAGE_WORDS
    if config.passage_words is not None:
        words = PassageWords.parse(config.passage_words)
    with _open_text(config.path) as file:
        text = file.read()
    columns = config.columns()
    examples = [
        Example(
            columns.prompt_template.replace("{prompt}", passage.prompt),
            columns.completion_template.replace("{completion}", passage.completion),
            f"{config.path.name}, line {passage.line}",
            ends=False,
        )
        for passage in split_passages(text, words)
    ]
    if not examples:
        raise UsageError(
            f"data {config.path}",
            f"has {len(text.split())} words; a passage takes {words.prompt} + {words.completion}; "
            "give a longer text or a smaller passage_words",
        )
    return examples


def _row_problems(row: Mapping[str, Any], columns: Preset) -> list[str]:
    problems = []
    for name in (columns.prompt_column, columns.completion_column):
        value = row.get(name)
        if name not in row:
            problems.append(f"has no {name!r}; its columns are {', '.join(map(repr, row))}")
        elif not isinstance(value, str):
            problems.append(f"{name!r} is {value!r:.40}; allowed: a text")
        elif not value.strip():
            problems.append(f"{name!r} is empty")
        elif _SURROGATE.search(value):
            problems.append(f"{name!r} holds half of a surrogate pair, which is no character")
    return problems


def _read_jsonl(path: Path) -> Iterator[_Row]:
    """One JSON object a line; blank lines are left out."""
    with _open_text(path) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            source = f"{path.name}, line {number}"
            try:
                document = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield _Row(source, {}, f"is not JSON ({error})")
                continue
            if isinstance(document, dict):
                yield _Row(source, document)
            else:
                yield _Row(source, {}, f"is a JSON {type(document).__name__}; allowed: an object")


def _read_csv(path: Path) -> Iterator[_Row]:
    """A header, then rows; a row is named by its first line, as texts may hold line breaks."""
    with _open_text(path) as lines:
        reader = csv.reader(lines, strict=True)
        start = 1
        try:
            header = next(reader, [])
            start = reader.line_num + 1
            for cells in reader:
                source, start = f"{path.name}, line {start}", reader.line_num + 1
                if len(cells) == len(header):
                    yield _Row(source, dict(zip(header, cells, strict=True)))
                elif cells:
                    yield _Row(source, {}, f"has {len(cells)} cells; the header has {len(header)}")
        except csv.Error as error:
            yield _Row(f"{path.name}, line {start}", {}, f"is not CSV ({error})")


def _read_dataset(path: Path) -> Iterator[_Row]:
    """A dataset that Hugging Face datasets saved; one split of it."""
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError(
            f"data {path}", "is read by datasets, not installed here; run: pip install datasets"
        ) from error
    try:
        stored = datasets.load_from_disk(str(path))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"data {path}", f"is no dataset on disk ({error}); save one with save_to_disk"
        ) from error
    if isinstance(stored, datasets.DatasetDict):
        splits = ", ".join(str(path / name) for name in stored)
        raise UsageError(f"data {path}", f"holds several splits; give one of {splits}")
    for number, row in enumerate(stored, start=1):
        yield _Row(f"{path.name}, row {number}", row)


def _open_text(path: Path) -> IO[str]:
    """UTF-8 text, checked as a whole first: one UsageError names the lines that are not."""
    if path.is_dir():
        raise UsageError(f"data {path}", "is a directory; give a file")
    raise_problems("data", list(_undecodable_lines(path)))
    return path.open(encoding="utf-8-sig", newline="")


def _undecodable_lines(path: Path) -> Iterator[str]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                byte = line[error.start]
                yield (
                    f"{path.name}, line {number}: is not UTF-8 (byte {byte:#04x} at "
                    f"{error.start + 1}); convert the file"
                )


_READERS = {"jsonl": _read_jsonl, "csv": _read_csv, "dataset": _read_dataset}
