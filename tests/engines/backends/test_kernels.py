"""Bundles whose graphs need skipdec's kernels: on what they are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from skipdec.engines.backends.ort import OrtBackend
from skipdec.engines.backends.ort_cuda import OrtCudaBackend, OrtRehearsalBackend
from skipdec.engines.backends.session import EngineBackend
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.errors import EnvironmentMismatchError
from skipdec.runtime.generator import Generator

REMEDY = "skipdec build BUNDLE --target onnxruntime --kernels onnxruntime"


@pytest.fixture
def bundle(exported: Callable[..., Path]) -> EngineBundle:
    bundle = EngineBundle.open(exported("pre_norm"))
    return replace(bundle, manifest=bundle.manifest.model_copy(update={"kernels": "skipdec"}))


@pytest.mark.parametrize("make", [OrtBackend, OrtRehearsalBackend])
def test_without_the_library_nothing_is_loaded(
    bundle: EngineBundle, make: Callable[[], EngineBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skipdec.engines.kernels.library.find_library", lambda: None)
    monkeypatch.setattr("onnxruntime.InferenceSession", pytest.fail)
    with pytest.raises(EnvironmentMismatchError, match=REMEDY):
        Generator(bundle, make())


def test_a_gpu_is_no_place_for_them(bundle: EngineBundle) -> None:
    backend = OrtCudaBackend.__new__(OrtCudaBackend)  # there need be no GPU to refuse it
    with pytest.raises(EnvironmentMismatchError, match=f"are for CPUs; use device='cpu'.*{REMEDY}"):
        backend.load(bundle, bundle.manifest.embed)
