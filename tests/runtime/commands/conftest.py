"""Run ``skipdec generate`` in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import command_line
import pytest
from click.testing import Result


@pytest.fixture
def run(bundle: Path, own_thread_pools: None) -> Callable[..., Result]:
    """Return ``run("-p", "text", …, stdin=b"…")`` for the module's fixture ``bundle``."""

    def invoke(*arguments: str, stdin: bytes | None = None) -> Result:
        return command_line.run("generate", bundle, *arguments, input=stdin, prog_name="skipdec")

    return invoke
