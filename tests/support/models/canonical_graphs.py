"""Keep canonical graphs, so that each is traced once while the tracing code stays the same.

``build/canonical_graphs`` keeps them between processes, under a digest of the code and packages
that trace. A graph depends on an engine's module and signature, so models with equal modules share
it: models of equal vocabularies have one graph for candidates.
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
import torch

from skipdec.engines.manifest import EngineKind, FloatType, ModelSpec
from skipdec.exporter.architecture.architecture import canonical_signature
from skipdec.exporter.architecture.decoder_modules import engine_module
from skipdec.exporter.graphs.lowering import parameters_as_inputs
from skipdec.exporter.graphs.trace import trace_engine

_ROOT = Path(__file__).parents[3]
_KEPT = _ROOT / "build" / "canonical_graphs"
_CODE = (  # code that traces and that keeps
    *("engines/manifest", "exporter/architecture", "exporter/graphs/trace.py"),
    *("exporter/graphs/lowering.py", "tests/support/models/canonical_graphs.py"),
)
_PACKAGES = ("torch", "onnx", "onnx-ir", "onnxscript", "pydantic")
_LOADED: dict[str, ir.Model] = {}
_ORDER = "initializers"  # metadata: initialisers' names in traced order


def canonical_graph(kind: EngineKind, model: ModelSpec, dtype: FloatType) -> ir.Model:
    """Return the result of ``trace_engine``; do not change it."""
    key = _key(kind, model, dtype)
    if key not in _LOADED:
        path = _directory() / f"{key}.onnx"
        if not path.exists():
            with unmeasured():
                _keep(trace_engine(kind, model, dtype), path)
        _LOADED[key] = _kept(path)
    return _LOADED[key]


@cache
def _key(kind: EngineKind, model: ModelSpec, dtype: FloatType) -> str:
    """Return a digest of the module and the signature, which ``trace_engine`` reads."""
    module = engine_module(kind, model, getattr(torch, dtype))
    torchs_own = vars(torch.nn.Module()).keys()  # tables of parameters, hooks and the like
    read = [repr(canonical_signature(kind, model, dtype))]
    for name, part in module.named_modules():
        values = {key: value for key, value in vars(part).items() if key not in torchs_own}
        read += [f"{name} {type(part).__module__}.{type(part).__qualname__} {part.extra_repr()}"]
        read += [f"{key} {_stable(value)}" for key, value in values.items()]
    named = (*module.named_parameters(), *module.named_buffers())
    read += [f"{name} {tensor.dtype} {tuple(tensor.shape)}" for name, tensor in named]
    return hashlib.sha256("\n".join(read).encode()).hexdigest()


def _stable(value: object) -> str:
    """Return a text of an attribute that is equal in every process."""
    if callable(value):
        assert getattr(value, "__closure__", None) is None, value
        return f"{value.__module__}.{value.__qualname__}"
    assert isinstance(value, bool | int | float | str | tuple | ModelSpec | None), value
    return repr(value)


@cache
def _directory() -> Path:
    """Return the directory for this code and these packages, after deleting all others."""
    made_by = hashlib.sha256("".join(f"{name} {version(name)}\n" for name in _PACKAGES).encode())
    for name in _CODE:
        path = _ROOT / name
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
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
