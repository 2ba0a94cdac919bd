"""Run the examples in docstrings."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "module",
    [
        "kv.buffers",
        "kv.limits",
        "tokens.sampling",
        "schedule.decays",
        "schedule.schedule",
        "schedule.text",
    ],
)
def test_examples_in_docstrings_give_their_results(module: str) -> None:
    result = doctest.testmod(importlib.import_module(f"skipdec.runtime.{module}"))
    assert result.attempted > 0
    assert result.failed == 0
