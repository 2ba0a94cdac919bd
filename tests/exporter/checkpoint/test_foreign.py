"""A library's exceptions of any type about a checkpoint's content become one error."""

from __future__ import annotations

import pytest

from skipdec.engines.errors import CheckpointError, MissingExtraError
from skipdec.exporter.checkpoint.foreign import library_reads


class Panic(BaseException):
    """Stands for pyo3_runtime.PanicException, which tokenizers raises."""


@pytest.mark.parametrize("error", [ValueError("bad\n  value"), Panic("bad value")])
def test_any_exception_becomes_an_error_that_quotes_it(error: BaseException) -> None:
    with (
        pytest.raises(CheckpointError) as caught,
        library_reads("config.json", "can't be read", "correct it"),
    ):
        raise error
    name = type(error).__name__
    assert str(caught.value) == f"config.json | can't be read ({name}: bad value); correct it"
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MissingExtraError("torch", "is missing")])
def test_interrupts_and_own_errors_pass_unchanged(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, library_reads("config.json", "can't be read"):
        raise error
    assert caught.value is error
