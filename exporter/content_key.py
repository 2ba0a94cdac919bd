"""What an engine's bytes follow from, as one hash."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import version
from pathlib import Path

import onnx_ir as ir

from ..engines.manifest import ModelSpec, PrecisionSpec, json_digest
from .lowering import parameters_as_inputs
from .reader import CheckpointReader
from .weights import Parameter

_TOOLS = ("skipdec", "numpy", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "torch")


@cache
def tool_versions() -> dict[str, str]:
    """The versions of everything that has a say in an engine's bytes."""
    return {tool: version(tool) for tool in _TOOLS}


@cache
def _code_digest() -> str:
    """SHA-256 of this folder's source: engines that other code has built are not reused."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def graph_digest(graph: ir.Model) -> str:
    """SHA-256 of a graph without data, in its serialised form."""
    proto = ir.to_proto(parameters_as_inputs(graph))
    return hashlib.sha256(proto.SerializeToString(deterministic=True)).hexdigest()


def content_key(
    name: str,
    target: str,
    canonical_digest: str,
    parameters: tuple[Parameter, ...],
    model: ModelSpec,
    precision: PrecisionSpec,
    reader: CheckpointReader,
) -> str:
    """Return a hash that changes whenever the engine's files would.

    Reads each of the engine's tensors once to hash it; ``canonical_digest`` is that of the traced
    graph, which all layers share.
    """
    sources = {source for parameter in parameters for source in parameter.sources}
    return json_digest(
        {
            "name": name,
            "target": target,
            "graph": canonical_digest,
            "tensors": {source: reader.content_id(source) for source in sources},
            "model": model.model_dump(mode="json"),
            "precision": precision.model_dump(mode="json"),
            "tools": tool_versions(),
            "code": _code_digest(),
        }
    )
