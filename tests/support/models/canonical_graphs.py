"""Canonical graphs, each traced once per test process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import onnx_ir as ir

from skipdec.engines.manifest import EngineKind, FloatType, ModelSpec
from skipdec.exporter.graphs.trace import trace_engine

# What a graph doesn't depend on, so that equal ones are found under one key.
_INDIFFERENT = {"name": "any", "num_layers": 1, "max_seq_len": 1}


def canonical_graph(kind: EngineKind, model: ModelSpec, dtype: FloatType) -> ir.Model:
    """Return the result of ``trace_engine``; do not change it."""
    return _traced(kind, model.model_copy(update=_INDIFFERENT), dtype)


@cache
def _traced(kind: EngineKind, model: ModelSpec, dtype: FloatType) -> ir.Model:
    with unmeasured():
        return trace_engine(kind, model, dtype)


@contextmanager
def unmeasured() -> Iterator[None]:
    """Pause coverage, which makes pure Python inside torch nearly twice as slow."""
    tracer = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(tracer)
