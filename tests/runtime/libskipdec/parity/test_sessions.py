"""Engines write the same bytes whether C++ or Python runs them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from programs import PRESET, built_program
from runtimes import LIBRARY

from skipdec.engines.backends.session import EngineBackend, open_backend
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.manifest import EngineSpec, TensorRole
from skipdec.engines.memory import Array, numpy_dtype

ROWS, TOKENS = 2, 5


def run(name: str, *words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"SKIPDEC_ONNXRUNTIME": str(LIBRARY)} | variables
    command = [built_program(name), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def run_engines(
    bundle: Path, *words: str | Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    return run("run_engines", bundle, str(ROWS), str(TOKENS), *words, **variables)


@pytest.mark.parametrize(
    ("structure", "options", "weights"),
    [
        ("pre_norm", {}, "mapped"),
        ("post_norm", {"quantize": "int8"}, "mapped"),
        ("pre_norm", {"kernels": "auto", "quantize": "int8"}, "mapped"),
        ("pre_norm", {"kernels": "auto", "quantize": "int8"}, "copied"),
        ("post_norm", {"kernels": "auto", "quantize": "int8", "kv_dtype": "int8"}, "mapped"),
        ("pre_norm", {"kernels": "auto", "dtype": "bfloat16"}, "copied"),
    ],
)
def test_engines_compute_the_same_bits(
    exported: Callable[..., Path],
    tmp_path: Path,
    structure: str,
    options: dict[str, str],
    weights: str,
) -> None:
    path = exported(structure, **options)
    done = run_engines(path, weights, tmp_path / "output")
    assert done.returncode == 0, done.stderr
    bundle = EngineBundle.open(path)
    assert done.stdout.startswith(f"ONNX Runtime {onnxruntime.__version__}")
    assert ("skipdec" in done.stdout) == (bundle.manifest.kernels is not None)
    assert (tmp_path / "output").read_bytes() == computed_in_python(bundle)


def computed_in_python(bundle: EngineBundle) -> bytes:
    """Return the output of run_engines.cpp as computed in Python."""
    manifest, model = bundle.manifest, bundle.manifest.model
    backend = open_backend(manifest.target)
    rows, tokens = np.arange(ROWS)[:, None], np.arange(TOKENS)
    values: dict[TensorRole, Array] = {
        TensorRole.INPUT_IDS: (7 * rows + 3 * tokens + 5) % model.vocab_size,
        TensorRole.POSITION_IDS: np.tile(tokens, (ROWS, 1)),
        TensorRole.ROW_POSITIONS: np.arange(1, ROWS + 1) * TOKENS - 1,
        TensorRole.WRITE_INDICES: np.zeros(ROWS, np.int64),
        TensorRole.SEQLENS_K: np.full(ROWS, TOKENS - 1, np.int32),
        TensorRole.TOTAL_SEQUENCE_LENGTH: np.array(TOKENS, np.int32),
        TensorRole.LOGITS: np.zeros((ROWS, model.vocab_size), np.float32),
    }
    hidden = np.zeros((ROWS, TOKENS, model.hidden_size), numpy_dtype(manifest.hidden_dtype))
    values[TensorRole.HIDDEN_STATES] = values[TensorRole.HIDDEN_STATES_OUT] = hidden
    run_engine(backend, bundle, manifest.embed, values)
    written = [hidden.tobytes()]
    for layer in manifest.layers:
        shape = (ROWS, model.num_kv_heads, TOKENS, manifest.kv_width)
        keys, cached = (np.zeros(shape, numpy_dtype(manifest.kv_dtype)) for _ in range(2))
        values[TensorRole.PAST_KEY] = values[TensorRole.PRESENT_KEY] = keys
        values[TensorRole.PAST_VALUE] = values[TensorRole.PRESENT_VALUE] = cached
        run_engine(backend, bundle, layer, values)
        written += [array.tobytes() for array in (hidden, keys, cached)]
    run_engine(backend, bundle, manifest.head, values)
    return b"".join([*written, values[TensorRole.LOGITS].tobytes()])


def run_engine(
    backend: EngineBackend,
    bundle: EngineBundle,
    spec: EngineSpec,
    values: Mapping[TensorRole, Array],
) -> None:
    backend.load(bundle, spec).bind({role: values[role] for role in spec.roles}).run()


def test_a_missing_onnx_runtime_is_reported_with_its_path(
    exported: Callable[..., Path], tmp_path: Path
) -> None:
    missing = str(tmp_path / "libonnxruntime.so")
    done = run_engines(
        exported("pre_norm"), "mapped", tmp_path / "output", SKIPDEC_ONNXRUNTIME=missing
    )
    assert done.returncode == 1
    assert f"{missing} can't be loaded" in done.stderr
    assert "pip install 'onnxruntime>=1.31'" in done.stderr


@pytest.mark.skipif(PRESET != "tests", reason="a sanitizer needs terabytes of addresses")
def test_a_memory_limit_that_stops_onnx_runtime_from_loading_is_named(
    exported: Callable[..., Path], tmp_path: Path
) -> None:
    words = (exported("pre_norm"), "1", "1", "mapped", tmp_path / "output")
    limited = ["bash", "-c", 'ulimit -v 25000; exec "$@"', "bash", built_program("run_engines")]
    environment = os.environ | {"SKIPDEC_ONNXRUNTIME": str(LIBRARY)}
    done = subprocess.run([*limited, *words], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "raise the limit of memory (ulimit -v)" in done.stderr
    assert "pip install" not in done.stderr


def test_engines_of_one_process_share_its_thread_pool(exported: Callable[..., Path]) -> None:
    done = run("shared_process", exported("pre_norm"))
    assert done.returncode == 0, done.stderr
    outcomes = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    assert "open skipdec first" in done.stdout
    assert outcomes["beside another's environment"].startswith("status 5, ONNX Runtime ")
    for name in ("with as many threads", "with any threads", "after the first closed"):
        assert outcomes[name] == "fine"
    for name in ("with other threads", "with too many threads", "with another library"):
        assert outcomes[name].startswith("status 1, ")
