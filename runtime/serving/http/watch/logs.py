"""Lines on stderr, as text or JSON: what happened to which request, never what it said."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

_SERVING = __name__.rpartition(".http.")[0]  # all that serves, workers too
REQUESTS = logging.getLogger(f"{__name__}.requests")
SERVER = logging.getLogger(f"{__name__}.server")


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger, message, and the record's ``fields``."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        document = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            document["traceback"] = self.formatException(record.exc_info)
        return json.dumps(document, default=str)


class TextFormatter(logging.Formatter):
    """``12:00:01 info POST /v1/completions status=200 seconds=0.31``."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and what follows it, a traceback say, indented.

        Nothing that a client sends begins a line or moves a terminal's cursor.
        """
        first, *others = (printable(line) for line in super().format(record).split("\n"))
        return "\n".join([first, *(f"    {line}" for line in others)])

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (logging's name)
        """Return the line without a traceback."""
        fields = getattr(record, "fields", {}).items()
        told = [
            f"{name}={_field(value)}" for name, value in fields if name not in ("method", "path")
        ]
        return " ".join([super().formatMessage(record), *told])


def printable(text: str) -> str:
    """Return ``text`` with escapes for control characters, line ends and the like.

    >>> printable("a\\nb")
    'a\\\\nb'
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def _field(value: object) -> str:
    """A text with spaces, quotes or line ends in quotes, so that it can't look like two fields."""
    if not isinstance(value, str) or (value.isprintable() and not set(value) & set(' "')):
        return str(value)
    return json.dumps(value)


def log_to_stderr(form: Literal["text", "json"]) -> None:
    """Give the process' root logger one handler that writes lines of this form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    logging.getLogger(_SERVING).setLevel(logging.INFO)
