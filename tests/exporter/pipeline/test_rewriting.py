"""``skipdec build --kernels onnxruntime`` gives the same bundle without torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from skipdec.engines.backends.ort import OrtBackend
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.errors import UsageError
from skipdec.engines.kernels.library import find_library
from skipdec.exporter.config import BuildConfig
from skipdec.exporter.pipeline.build import build_bundle, plan_build
from skipdec.runtime.generator import Generator

TOKENS = [3, 5, 7, 9, 11, 13, 15, 17]
needs_kernels = pytest.mark.skipif(find_library() is None, reason="the kernels are not compiled")


def logprobs(bundle: Path) -> np.ndarray:
    with Generator(EngineBundle.open(bundle), OrtBackend(), schedule="full") as generator:
        return np.array(generator.score([TOKENS[:1]], [TOKENS[1:]])[0].logprobs, np.float32)


def rewriting(bundle: Path, output: Path) -> BuildConfig:
    return BuildConfig(bundle=bundle, output=output, target="onnxruntime", kernels="onnxruntime")


@needs_kernels
@pytest.mark.parametrize(
    ("structure", "options", "tolerance"),
    [
        ("post_norm", {"quantize": "int8", "kv_dtype": "float32"}, 1e-5),
        ("post_norm", {"quantize": "int4", "block_size": 32, "kv_dtype": "float32"}, 1e-3),
        ("post_norm", {"quantize": "int8-block", "kv_dtype": "float32"}, 1e-3),
        ("post_norm", {"dtype": "bfloat16", "kv_dtype": "float32"}, 1e-4),
        # the cache is float32 afterwards, in the next two
        ("post_norm", {"quantize": "int8"}, 0.2),
        ("post_norm", {"dtype": "float16", "kv_dtype": "int8"}, 3e-1),
        # RMS norms and gated products
        ("llama", {"quantize": "int8", "kv_dtype": "float32"}, 1e-4),
        # One int8 code of the activations is at the limit between two: MatMulNBits and BlockLinear4
        # round it differently, and relative noise of 1e-6 in the embeddings changes the logprobs of
        # the source bundle itself by the same 0.0156. Other processors may round other codes.
        ("llama", {"quantize": "int4", "block_size": 32, "kv_dtype": "float32"}, 5e-2),
        ("qwen3", {"dtype": "bfloat16", "kv_dtype": "float32"}, 1e-4),
    ],
)
def test_a_rewritten_bundle_computes_the_same(
    exported: Callable[..., Path],
    tmp_path: Path,
    structure: str,
    options: dict[str, object],
    tolerance: float,
) -> None:
    source = exported(structure, kernels="skipdec", **options)
    report = build_bundle(rewriting(source, tmp_path / "rewritten"))
    rewritten = EngineBundle.open(tmp_path / "rewritten", verify="full")
    assert rewritten.manifest.kernels is None
    assert rewritten.schedule_document == EngineBundle.open(source).schedule_document
    is_whole = "dtype" not in options and options.get("kv_dtype") == "float32"
    assert bool(report.warnings) != is_whole
    np.testing.assert_allclose(logprobs(rewritten.path), logprobs(source), atol=tolerance, rtol=0)


def test_bundles_on_onnx_runtimes_operators_are_refused(
    exported: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="has no skipdec operators to rewrite"):
        plan_build(rewriting(exported("post_norm"), tmp_path / "out"))


def test_rewriting_quantises_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="quantize is int8, but rewriting keeps the weights"):
        BuildConfig(bundle=tmp_path, target="onnxruntime", quantize="int8")
