"""Canonical graphs, each traced once: by a test process, and as long as what traces stays the same.

``build/canonical_graphs`` keeps them between processes, under a digest of the code and of the
packages that made them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path

import onnx
import onnx_ir as ir

from skipdec.engines.manifest import EngineKind, FloatType, ModelSpec
from skipdec.exporter.graphs.lowering import parameters_as_inputs
from skipdec.exporter.graphs.trace import trace_engine

# What a graph doesn't depend on, so that equal ones are found under one key.
_INDIFFERENT = {"name": "any", "num_layers": 1, "max_seq_len": 1}
_ROOT = Path(__file__).parents[3]
_KEPT = _ROOT / "build" / "canonical_graphs"
_CODE = ("engines", "exporter", "tests/support/models")  # there, the toy family
_PACKAGES = ("torch", "onnx", "onnx-ir", "onnxscript", "pydantic")
_ORDER = "initializers"  # metadata: their names in the traced order


def canonical_graph(kind: EngineKind, model: ModelSpec, dtype: FloatType) -> ir.Model:
    """Return the result of ``trace_engine``; do not change it."""
    return _traced(kind, model.model_copy(update=_INDIFFERENT), dtype)


@cache
def _traced(kind: EngineKind, model: ModelSpec, dtype: FloatType) -> ir.Model:
    asked = f"{kind} {dtype} {model.model_dump_json()}"
    path = _directory() / f"{hashlib.sha256(asked.encode()).hexdigest()}.onnx"
    if not path.exists():
        with unmeasured():
            _keep(trace_engine(kind, model, dtype), path)
    return _kept(path)


@cache
def _directory() -> Path:
    """Return where graphs of this code and these packages are kept; those of others are deleted."""
    made_by = hashlib.sha256("".join(f"{name} {version(name)}\n" for name in _PACKAGES).encode())
    for place in _CODE:
        for file in sorted((_ROOT / place).rglob("*.py")):
            made_by.update(hashlib.sha256(file.read_bytes()).digest())
    directory = _KEPT / made_by.hexdigest()
    directory.mkdir(parents=True, exist_ok=True)
    for other in set(_KEPT.iterdir()) - {directory}:
        shutil.rmtree(other, ignore_errors=True)
    return directory


def _keep(model: ir.Model, path: Path) -> None:
    copy = parameters_as_inputs(model)
    copy.metadata_props[_ORDER] = json.dumps(list(model.graph.initializers))
    partial = path.with_suffix(f".{os.getpid()}")
    onnx.save(ir.to_proto(copy), partial)
    partial.replace(path)


def _kept(path: Path) -> ir.Model:
    model = ir.from_proto(onnx.load(path))
    inputs, initializers = model.graph.inputs, model.graph.initializers
    known = {value.name: value for value in (*inputs, *initializers.values())}
    names = json.loads(model.metadata_props.pop(_ORDER))
    parameters = {name for name in names if name not in initializers}
    for value in [value for value in inputs if value.name in parameters]:
        inputs.remove(value)
    initializers.clear()
    initializers.update({name: known[name] for name in names})
    return model


@contextmanager
def unmeasured() -> Iterator[None]:
    """Pause coverage, which makes pure Python inside torch nearly twice as slow."""
    tracer = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(tracer)
