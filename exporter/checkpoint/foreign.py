"""Conversion of libraries' exceptions about a checkpoint's content into our errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...engines.errors import CheckpointError, SkipDecError, brief

_OWN = (SkipDecError, KeyboardInterrupt, SystemExit, GeneratorExit)


@contextmanager
def library_reads(subject: str, problem: str, remedy: str = "") -> Iterator[None]:
    """Turn whatever a library raises in the ``with`` block into ``CheckpointError(subject, …)``.

    Libraries don't document what they raise for unexpected content: transformers raises
    StrictDataclassError, torch an AssertionError, and tokenizers a pyo3 PanicException, which is
    not an Exception. ``problem`` says what could not be done; the library's own message follows.

    >>> with library_reads("model/config.json", "can't be read by transformers"):
    ...     AutoConfig.from_pretrained("model")
    CheckpointError: model/config.json | can't be read by transformers (StrictDataclassError: …)
    """
    try:
        yield
    except _OWN:
        raise
    except BaseException as error:
        words = brief(f"{problem} ({_described(error)})")
        raise CheckpointError(subject, f"{words}; {remedy}" if remedy else words) from error


def _described(error: BaseException) -> str:
    """Return the type and message of ``error`` on one line."""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
