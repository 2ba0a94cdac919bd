"""Run tests on each instruction set that the kernels support here."""

from __future__ import annotations

import pytest
from one_operator import available_instruction_sets

from skipdec.engines.kernels.library import INSTRUCTION_SET_VARIABLE


@pytest.fixture(params=available_instruction_sets())
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test once on each instruction set."""
    monkeypatch.setenv(INSTRUCTION_SET_VARIABLE, request.param)
    name: str = request.param
    return name
