"""What an engine's or a plan's bytes follow from, as one hash."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from ..engines.manifest import FileRecord, ModelSpec, PrecisionSpec, json_digest
from ..engines.trt import build as trt_build
from .lowering import parameters_as_inputs
from .migration import Factors
from .reader import CheckpointReader
from .weights import Parameter

if TYPE_CHECKING:
    from .compilation import Compilation

_COMPILING_TOOLS = ("skipdec", "numpy", "onnx", "onnx-ir")
_TOOLS = (*_COMPILING_TOOLS, "onnxscript", "onnxruntime", "torch")


@cache
def tool_versions() -> dict[str, str]:
    """The versions of everything that has a say in an ONNX engine's bytes."""
    return {tool: version(tool) for tool in _TOOLS}


@cache
def compiling_tool_versions() -> dict[str, str]:
    """The versions of what turns ONNX engines into plans, beside TensorRT."""
    return {tool: version(tool) for tool in _COMPILING_TOOLS}


@cache
def _code_digest() -> str:
    """SHA-256 of the source: engines that other code has built are not reused."""
    digest = hashlib.sha256()
    builders = Path(trt_build.__file__).parent.glob("*.py")
    for path in (*sorted(Path(__file__).parent.glob("*.py")), *sorted(builders)):
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
    factors: Factors,
) -> str:
    """Return a hash that changes whenever the engine's files would.

    Reads each of the engine's tensors once to hash it; ``canonical_digest`` is that of the traced
    graph, which all layers share; ``factors`` migrate the engine's weights.
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
            "factors": dict(factors),
            "tools": tool_versions(),
            "code": _code_digest(),
        }
    )


def plan_key(
    path: str, source: tuple[FileRecord, ...], compilation: Compilation, capacity: int | None
) -> str:
    """Return a hash that changes whenever the plan at ``path``, for one KV capacity, would.

    ``source`` are the files of its canonical engine. Timings of kernels, which may differ
    from one build to the next, don't count.
    """
    return json_digest(
        {
            "path": path,
            "target": compilation.target,
            "source": [record.sha256 for record in source],
            "precision": compilation.precision.model_dump(mode="json"),
            "build": compilation.build.model_dump(mode="json"),
            "capacity": capacity,
            "tools": compiling_tool_versions(),
            "code": _code_digest(),
        }
    )
