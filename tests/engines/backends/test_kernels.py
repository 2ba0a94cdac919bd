"""Refuse bundles whose graphs need skipdec's kernels where these cannot run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from fixture_types import Exported

from skipdec.engines.backends.ort import OrtBackend
from skipdec.engines.backends.ort_cuda import OrtCudaBackend, OrtRehearsalBackend
from skipdec.engines.backends.session import EngineBackend
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.errors import EnvironmentMismatchError
from skipdec.engines.kernels.library import (
    INSTRUCTION_SET_VARIABLE,
    find_library,
    kernels_in_use,
)
from skipdec.runtime.generator import Generator

REMEDY = "skipdec export MODEL --kernels onnxruntime"


@pytest.fixture
def bundle(exported: Exported) -> EngineBundle:
    bundle = EngineBundle.open(exported("pre_norm"))
    return replace(bundle, manifest=bundle.manifest.model_copy(update={"kernels": "skipdec"}))


def test_the_kernels_in_use_are_named(
    bundle: EngineBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = bundle.manifest
    monkeypatch.setenv(INSTRUCTION_SET_VARIABLE, "portable")
    if find_library() is not None:
        assert kernels_in_use(manifest) == "skipdec portable"
    assert kernels_in_use(manifest.model_copy(update={"kernels": None})) == "onnxruntime"
    monkeypatch.setattr("skipdec.engines.kernels.library.find_library", lambda: None)
    assert kernels_in_use(manifest) == "skipdec, not compiled here"


@pytest.mark.parametrize("make", [OrtBackend, OrtRehearsalBackend])
def test_a_bundle_is_refused_unloaded_if_the_library_is_missing(
    bundle: EngineBundle, make: Callable[[], EngineBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skipdec.engines.kernels.library.find_library", lambda: None)
    monkeypatch.setattr("onnxruntime.InferenceSession", pytest.fail)
    with pytest.raises(EnvironmentMismatchError, match=REMEDY):
        Generator(bundle, make())


def test_kernels_are_refused_on_a_gpu(bundle: EngineBundle) -> None:
    backend = OrtCudaBackend.__new__(OrtCudaBackend)  # the refusal needs no GPU
    with pytest.raises(EnvironmentMismatchError, match=f"are for CPUs; use device='cpu'.*{REMEDY}"):
        backend.load(bundle, bundle.manifest.embed)
