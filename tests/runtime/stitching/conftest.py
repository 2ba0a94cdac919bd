"""Fixtures open generators on devices of host memory, a bundle that drafts, and a stitcher."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from device_generators import TARGETS, Exported, Open
from draft_layers import write_draft_layer
from known_tokens import Bits, FedStitcher, bits_alone, fed_stitcher

from skipdec import Generator
from skipdec.engines.kernels.library import find_library


@pytest.fixture(params=list(TARGETS))
def open_on_device(
    request: pytest.FixtureRequest, exported: Exported, tmp_path: Path
) -> Iterator[Open]:
    """Return ``open_on_device(structure, **options of Generator)`` for each target in turn."""
    opened = []

    def open_generator(structure: str = "pre_norm", **options: object) -> Generator:
        bundle, backend = TARGETS[request.param](exported, tmp_path, structure)
        opened.append(Generator(bundle, backend, **options))
        return opened[-1]

    yield open_generator
    for generator in opened:
        generator.close()


@pytest.fixture(scope="session")
def draft_bundle(
    exported: Exported,
    checkpoint: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """Return a bundle of int8 with a draft layer and a narrow head of 64 tokens."""
    layer = write_draft_layer(tmp_path_factory.mktemp("draft"), str(checkpoint("pre_norm")))
    options = {"quantize": "int8", "kernels": "skipdec", "draft_layer": layer, "draft_head": 64}
    return exported("pre_norm", **options)


@pytest.fixture(scope="module")
def stitcher(request: pytest.FixtureRequest, exported: Exported) -> Iterator[FedStitcher]:
    """Yield a stitcher of slots on the host, or on the device that the test's parameter names."""
    if find_library() is None:
        pytest.skip("the kernels were not compiled")
    options = {"kernels": "skipdec", "quantize": "int8", "kv_dtype": "float16"}
    device = getattr(request, "param", "cpu")
    with fed_stitcher(exported("pre_norm", **options), device=device) as stitcher:
        yield stitcher


@pytest.fixture(scope="module")
def stitcher_bits(stitcher: FedStitcher) -> Bits:
    return bits_alone(stitcher)
