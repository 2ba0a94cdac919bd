"""Checks that models of a Triton server still generate, which its own health does not show."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from time import perf_counter
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

from ....engines.errors import SkipDecError, UsageError

CHECKING_CLIENT = "skipdec triton check"
"""The client name of these requests, which don't wait: a busy model answers them at once."""

_ONE_TOKEN = {"input_ids": [0], "max_tokens": 1, "temperature": 0.0, "client": CHECKING_CLIENT}


class _NoAnswerError(Exception):
    """The server is dead, refuses the request, or does not speak HTTP."""


@dataclass(frozen=True)
class Liveness:
    """The response of one model to a request for a token."""

    model: str
    seconds: float
    problem: str | None  # None: it generated the token, or is busy and its steps end in time


def check_triton_models(
    url: str, names: Sequence[str] = (), *, timeout: float = 10.0
) -> list[Liveness]:
    """Let models generate one token each; by default all that the server calls ready.

    ``url``: that of its HTTP service, e.g. ``http://localhost:8000``. ``timeout``: seconds per
    model. A busy model answers at once that it is alive, unless its current step takes too long.

    Raises UsageError for an invalid URL, and SkipDecError if the server can't be reached.
    """
    root = _root(url)
    return [_check(root, name, timeout) for name in names or _ready_models(root, timeout)]


def _root(url: str) -> str:
    with suppress(ValueError):  # raised for invalid brackets and ports
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return url.rstrip("/")
    raise UsageError("URL", f"is {url!r}; allowed: e.g. http://localhost:8000")


def _ready_models(root: str, timeout: float) -> list[str]:
    try:
        index = _post(f"{root}/v2/repository/index", {"ready": True}, timeout)
    except _NoAnswerError as error:
        raise SkipDecError(root, f"does not list its models ({error})") from error
    models = index if isinstance(index, list) else []
    names = [model["name"] for model in models if isinstance(model, dict) and "name" in model]
    if not names or len(names) < len(models):
        raise SkipDecError(root, f"has no model that is ready; it answered {index!r:.200}")
    return list(map(str, names))


def _check(root: str, name: str, timeout: float) -> Liveness:
    start = perf_counter()
    problem = None
    try:
        url = f"{root}/v2/models/{quote(name, errors='replace')}/generate"
        answer = _post(url, _ONE_TOKEN, timeout)
        if not isinstance(answer, dict) or "text_output" not in answer:
            problem = f"answered {answer!r:.200}"
    except _NoAnswerError as error:
        problem = str(error)
    return Liveness(name, perf_counter() - start, problem)


def _post(url: str, document: dict[str, Any], timeout: float) -> Any:  # noqa: ANN401  (any JSON)
    """Return the server's answer. Raises _NoAnswerError with Triton's own message, if any."""
    try:
        request = Request(url, json.dumps(document).encode(), {"Content-Type": "application/json"})
        with urlopen(request, timeout=timeout) as answer:
            return json.load(answer)
    except HTTPError as error:
        problem = f"status {error.code}"
        with suppress(OSError, HTTPException):  # its text may be incomplete
            problem = error.read().decode(errors="replace").strip() or problem
    except URLError as error:
        problem = str(error.reason)
    except HTTPException as error:
        problem = repr(error)  # the text may hold any bytes
    except RecursionError:
        problem = "answered JSON that is nested deeper than Python reads"
    except (OSError, ValueError) as error:
        problem = str(error)
    raise _NoAnswerError(problem)
