"""Files and JSON: reading untrusted input within bounds, writing, and sealing with a digest."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

from .constants import integer
from .errors import SkipDecError

MAX_BYTES = integer("max_json_bytes")  # parsed JSON takes up to twenty times its size in memory
MAX_NESTING = integer("max_json_nesting")

_TOO_DEEP = f"is nested deeper than {MAX_NESTING} levels"
_OS_ERROR = re.compile(r"\(os error (\d+)\)")  # in the messages of libraries written in Rust
_FULL = 2**20  # free bytes below which a library's failed write is blamed on a full disk
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_JSON_KINDS = {
    dict: "object",
    str: "text",
    int: "number",
    float: "number",
    bool: "boolean",
    type(None): "null",
}
_NO_DIGEST = "0" * 64
_LINE = '\n  "digest": "'  # unique: deeper keys are indented further, texts contain no newline


def read_json(
    path: Path,
    raises: type[SkipDecError],
    *,
    subject: str | None = None,
    remedy: str = "",
) -> Any:  # noqa: ANN401  (any JSON value)
    """Return the value of the JSON file ``path``, read by ``read_file`` and ``parse_json``.

    Problems are raised as ``raises(subject, "…; remedy")``; the default subject is the path.
    """
    subject = subject or str(path)
    content = read_file(path, raises, subject=subject, remedy=remedy)
    return parse_json(content, raises, subject=subject, remedy=remedy)


def read_object(path: Path, raises: type[SkipDecError], *, remedy: str = "") -> dict[str, Any]:
    """Return the object in the JSON file ``path``; problems are raised as by ``read_json``."""
    document = read_json(path, raises, remedy=remedy)
    if not isinstance(document, dict):
        problem = f"is a JSON {json_kind(document)}; expected an object"
        raise raises(str(path), _advised(problem, remedy))
    return document


def read_file(
    path: Path,
    raises: type[SkipDecError],
    *,
    subject: str | None = None,
    remedy: str = "",
    limit: int = MAX_BYTES,
) -> bytes:
    """Return the content of ``path``: a regular file of at most ``limit`` bytes, or a link to one.

    Other kinds of files, such as pipes, are rejected unread, so the call can't block.
    """
    try:
        with open_regular(path) as file:
            content = file.read(limit + 1)
    except OSError as error:
        problem = f"can't be read ({error.strerror or error})"
    else:
        if len(content) <= limit:
            return content
        problem = f"is larger than {limit:,} bytes, the limit"
    raise raises(subject or str(path), _advised(problem, remedy)) from None


def open_regular(path: Path) -> BufferedReader:
    """Open ``path`` for reading. Raises OSError unless it is a regular file or a link to one."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if problem := _kind_problem(stat.S_IFMT(os.fstat(descriptor).st_mode)):
            raise OSError(problem)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def kind_problem(path: Path) -> str | None:
    """Return the problem unless ``path`` is a regular file, or a link to one; never blocks."""
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
    except OSError as error:
        return f"can't be read ({error.strerror})"
    return _kind_problem(kind)


def _kind_problem(kind: int) -> str | None:
    if kind == stat.S_IFREG:
        return None
    return f"is {_KINDS.get(kind, 'special')}; expected a regular file"


def json_kind(value: object) -> str:
    """Return the kind of a JSON value as messages name it, such as ``list`` or ``null``."""
    return _JSON_KINDS.get(type(value), type(value).__name__)


def parse_json(
    content: str | bytes,
    raises: type[SkipDecError],
    *,
    subject: str,
    remedy: str = "",
    yields: bool = False,
    exact: bool = False,
) -> Any:  # noqa: ANN401  (any JSON value)
    """Return the value of JSON text in UTF-8.

    ``yields`` lets other threads run between two numbers, which takes twice as long. ``exact`` also
    rejects what other languages' parsers reject or read differently: numbers that are not finite,
    and integers of more than 64 bits. Raises for invalid JSON, duplicate keys, lone surrogates,
    numbers of more than 4,300 digits, and nesting deeper than ``MAX_NESTING``.
    """
    try:
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
        document = json.loads(text, **(EXACT if exact else _YIELDING if yields else UNIQUE))
        problem = _value_problem(document)
    except (ValueError, RecursionError) as error:
        problem = json_problem(error)
    if problem is None:
        return document
    raise raises(subject, _advised(problem, remedy)) from None


def json_problem(error: ValueError | RecursionError) -> str:
    """Return the problem of a text that ``json.loads`` refused, perhaps with `UNIQUE`."""
    if isinstance(error, RecursionError):
        return _TOO_DEEP
    if isinstance(error, _DuplicateKeyError):
        return str(error)
    reason, _, _ = str(error).partition("; use sys.")  # advice for Python programs
    return f"is not JSON ({reason})"


def lone_surrogate(text: str) -> str | None:
    """Return the problem with a text that has half of a surrogate pair and so can't be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        return f"has the lone surrogate {half}, half of a character; give whole characters"
    return None


class _DuplicateKeyError(ValueError):
    """An object has a key twice."""


def _unique_members(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object of ``members``. Raises ValueError for a duplicate key."""
    made = dict(members)
    if len(made) < len(members):
        counts = Counter(key for key, _ in members)
        twice = next(key for key, count in counts.items() if count > 1)
        raise _DuplicateKeyError(f"has the key {twice!r:.80} twice in one object; give it once")
    return made


def _integer(text: str) -> int:
    value = int(text)
    if not -(2**63) <= value < 2**64:
        raise ValueError(f"{text[:40]} is an integer of more than 64 bits")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is not a finite number")
    return value


# Arguments of json.loads; violations raise ValueError.
UNIQUE: Mapping[str, Any] = {"object_pairs_hook": _unique_members}
EXACT: Mapping[str, Any] = {
    **UNIQUE,
    "parse_int": _integer,
    "parse_float": _finite,
    "parse_constant": _finite,
}


_YIELDING: Mapping[str, Any] = {  # Python functions: other threads may run before each call
    **UNIQUE,
    "parse_int": lambda digits: int(digits),
    "parse_float": lambda digits: float(digits),
}


def _value_problem(document: Any) -> str | None:  # noqa: ANN401
    """Return the problem with the value, if any; walks it level by level, without recursion."""
    level = [document]
    for _ in range(MAX_NESTING):
        texts = [value for value in level if isinstance(value, str)]
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                texts += value
                inner += value.values()
            elif isinstance(value, list):
                inner += value
        if problem := next(filter(None, map(lone_surrogate, texts)), None):
            return problem
        if not inner:
            return None
        level = inner
    return _TOO_DEEP


def _advised(problem: str, remedy: str) -> str:
    return f"{problem}; {remedy}" if remedy else problem


def canonical_text(document: Any) -> str:  # noqa: ANN401  (any JSON value)
    """Return JSON with sorted keys, two spaces per level and a final newline."""
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def sealed_text(document: Mapping[str, Any]) -> str:
    """Return the canonical text of ``document`` with a new ``digest``.

    The digest is the SHA-256 of this text with 64 zeros in place of the digest.
    """
    blank = _blank(document)
    return blank.replace(_LINE + _NO_DIGEST, _LINE + _sha256(blank), 1)


def document_digest(document: Mapping[str, Any]) -> str:
    """Return the digest that `sealed_text` computes."""
    return _sha256(_blank(document))


def _blank(document: Mapping[str, Any]) -> str:
    return canonical_text({**document, "digest": _NO_DIGEST})


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Set the filename of an OSError that has none to ``path``: write() does not know the name.

    >>> with naming_file(Path("weights.bin")):
    ...     os.write(descriptor, content)
    OSError: [Errno 28] No space left on device: 'weights.bin'
    """
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


@contextmanager
def naming_failed_write(directory: Path, *libraries: type[Exception]) -> Iterator[None]:
    """Turn a library's error about a failed write below ``directory`` into an OSError.

    Its number is the one in the library's message, as safetensors writes it, or ENOSPC if the disk
    is full.
    """
    try:
        with naming_file(directory):
            yield
    except libraries as error:
        reported = _OS_ERROR.search(str(error))
        if reported is not None:
            number = int(reported[1])
        elif shutil.disk_usage(directory).free < _FULL:
            number = errno.ENOSPC
        else:
            raise
        raise OSError(number, os.strerror(number), str(directory)) from error


def write_file(path: Path, content: str | bytes) -> None:
    """Write ``content`` (text as UTF-8) to ``path``. An OSError carries the file's name."""
    with naming_file(path):
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def json_digest(document: Any) -> str:  # noqa: ANN401  (any JSON value)
    """Return the SHA-256, in hexadecimal, of JSON with sorted keys and without spaces."""
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
