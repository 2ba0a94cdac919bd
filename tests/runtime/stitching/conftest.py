"""Generators on devices of host memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from device_generators import TARGETS, Exported, Open

from skipdec import Generator


@pytest.fixture(params=list(TARGETS))
def open_on_device(
    request: pytest.FixtureRequest, exported: Exported, tmp_path: Path
) -> Iterator[Open]:
    """``open_on_device(structure, **options of Generator)``: on each target in turn."""
    opened = []

    def open_generator(structure: str = "pre_norm", **options: object) -> Generator:
        bundle, backend = TARGETS[request.param](exported, tmp_path, structure)
        opened.append(Generator(bundle, backend, **options))
        return opened[-1]

    yield open_generator
    for generator in opened:
        generator.close()
