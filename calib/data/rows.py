"""Read the rows of JSON Lines, CSV files and saved datasets, each with its line number."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ...engines.documents import UNIQUE, json_kind, json_problem
from ...engines.errors import MissingExtraError, UsageError

MAX_PROBLEMS_SHOWN = 20


@dataclass(frozen=True)
class Row:
    """One row: its columns, or the reason why it can't be read."""

    source: str
    columns: Mapping[str, Any]
    problem: str | None = None


def raise_problems(subject: str, problems: list[str]) -> None:
    """Raise a UsageError with the first problems and the number of the rest, if there are any."""
    if problems:
        shown = problems[:MAX_PROBLEMS_SHOWN]
        if hidden := len(problems) - len(shown):
            shown.append(f"and {hidden} more")
        raise UsageError(subject, *shown)


def _read_jsonl(path: Path) -> Iterator[Row]:
    """Yield one row per JSON object; blank lines are skipped."""
    with open_text(path) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            source = f"{path.name}, line {number}"
            try:
                document = json.loads(line, **UNIQUE)
            except (ValueError, RecursionError) as error:
                yield Row(source, {}, json_problem(error))
                continue
            if isinstance(document, dict):
                yield Row(source, document)
            else:
                yield Row(source, {}, f"is a JSON {json_kind(document)}; allowed: an object")


@contextmanager
def _long_cells() -> Iterator[None]:
    """Lift csv's limit of 131,072 characters per cell, which is global to the process."""
    limit = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _read_csv(path: Path) -> Iterator[Row]:
    """Yield the rows after the header, each named by its first line, as texts may span lines."""
    with open_text(path) as lines, _long_cells():
        reader = csv.reader(lines, strict=True)
        start = 1
        try:
            header = next(filter(None, reader), [])  # blank lines are no rows
            _check_header(path, header)
            start = reader.line_num + 1
            for cells in reader:
                source, start = f"{path.name}, line {start}", reader.line_num + 1
                if len(cells) == len(header):
                    yield Row(source, dict(zip(header, cells, strict=True)))
                elif cells:
                    yield Row(source, {}, f"has {len(cells)} cells; the header has {len(header)}")
        except csv.Error as error:
            yield Row(f"{path.name}, line {start}", {}, f"is not CSV ({error})")


def _check_header(path: Path, header: list[str]) -> None:
    """Raise UsageError for columns that are not separated by commas or share a name."""
    for separator, name in (("\t", "tabs"), (";", "semicolons")):
        if len(header) == 1 and separator in header[0]:
            raise UsageError(f"data {path}", f"has its columns separated by {name}; give commas")
    if twice := sorted({name for name in header if name and header.count(name) > 1}):
        names = ", ".join(map(repr, twice))
        raise UsageError(f"data {path}", f"has several columns named {names}; rename or remove one")


def _read_dataset(path: Path) -> Iterator[Row]:
    """Yield the rows of one split that Hugging Face datasets saved."""
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError(
            f"data {path}", "needs datasets, which is not installed; run: pip install datasets"
        ) from error
    try:
        stored = datasets.load_from_disk(str(path))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"data {path}", f"is not a dataset on disk ({error}); save one with save_to_disk"
        ) from error
    if isinstance(stored, datasets.DatasetDict):
        splits = ", ".join(str(path / name) for name in stored)
        raise UsageError(f"data {path}", f"holds several splits; give one of {splits}")
    for number, row in enumerate(stored, start=1):
        yield Row(f"{path.name}, row {number}", row)


def open_text(path: Path) -> IO[str]:
    """Open UTF-8 text after checking all of it; one UsageError names the undecodable lines."""
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


READERS = {"jsonl": _read_jsonl, "csv": _read_csv, "dataset": _read_dataset}
