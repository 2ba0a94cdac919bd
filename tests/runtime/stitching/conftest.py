"""Generators on devices of host memory, and a stitcher of slots on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from device_generators import TARGETS, Exported, Open
from known_tokens import FedStitcher, fed_stitcher

from skipdec import Generator
from skipdec.engines.kernels.library import find_library


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


@pytest.fixture(scope="module")
def own(exported: Callable[..., Path]) -> Iterator[FedStitcher]:
    if find_library() is None:
        pytest.skip("the kernels were not compiled")
    options = {"kernels": "skipdec", "quantize": "int8", "kv_dtype": "float16"}
    with fed_stitcher(exported("pre_norm", **options)) as stitcher:
        yield stitcher
