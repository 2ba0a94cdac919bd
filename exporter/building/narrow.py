"""Writing of the narrow head of drafts, a graph on the weights of the head."""

from __future__ import annotations

import hashlib

import onnx
import onnx_ir as ir

from ...engines.manifest import DRAFT_HEAD, FileRecord, ModelSpec, PrecisionSpec
from ..architecture.signature import Signature
from ..graphs.dtypes import check_dtypes
from ..graphs.narrow import external_bytes, narrow_head, narrow_signature
from .engine import BuiltEngine, write_new


def write_narrow_head(
    head: BuiltEngine, model: ModelSpec, precision: PrecisionSpec, form: str, tokens: int
) -> BuiltEngine:
    """Write the graph of the first ``tokens`` of the vocabulary beside that of ``head``.

    Its only file is the graph, which refers to the head's weights. It is on disk (fsync) on return.
    """
    source = head.directory / head.spec.graph
    narrow = narrow_head(source, model, precision, tokens)
    signature = narrow_signature(Signature(head.spec.inputs, head.spec.outputs), tokens)
    graph_bytes = ir.to_proto(narrow).SerializeToString(deterministic=True)
    path = source.with_name(f"{DRAFT_HEAD}.onnx")
    write_new(path, graph_bytes)
    spec = head.spec.model_copy(
        update={
            "name": DRAFT_HEAD,
            "graph": path.relative_to(head.directory).as_posix(),
            "outputs": signature.outputs,
            "step_bytes": external_bytes(narrow),
        }
    )
    check_dtypes(onnx.load_from_string(graph_bytes).graph, spec, model, precision, form)
    digest = hashlib.sha256(graph_bytes).hexdigest()
    record = FileRecord(path=spec.graph, size=len(graph_bytes), sha256=digest)
    return BuiltEngine(spec=spec, files=(record,), directory=head.directory)
