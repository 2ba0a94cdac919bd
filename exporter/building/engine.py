"""Writing of an engine: binds each weight to a lowered graph as external data."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import DTypeLike
from pydantic import Field

from ...engines.checking import FrozenModel
from ...engines.documents import naming_file
from ...engines.errors import CheckpointError, NotFiniteError
from ...engines.manifest import (
    DRAFT_HEAD,
    EngineKind,
    EngineSpec,
    FileRecord,
    FloatType,
    ModelSpec,
    PrecisionSpec,
)
from ...engines.memory import WEIGHTS_ALIGNMENT, Array
from ...engines.trt.build import PlanReport
from ..architecture.architecture import engine_parameters
from ..architecture.signature import Signature
from ..architecture.weights import Parameter, TensorReader, engine_name
from ..graphs.dtypes import check_dtypes
from ..graphs.lowering import LoweredEngine, lowering_of
from ..graphs.narrow import external_bytes, narrow_head
from ..quantization.quantize import NOT_FINITE, finite


class BuiltEngine(FrozenModel):
    """One engine on disk, ONNX or plans; paths are relative to ``directory``.

    Its JSON contains only what is independent of the current run.
    """

    spec: EngineSpec
    files: tuple[FileRecord, ...]
    plans: tuple[PlanReport, ...] = Field(default=(), description="TensorRT's, one per KV capacity")
    directory: Path = Field(exclude=True)
    resumed: bool = Field(default=False, exclude=True, description="built by an earlier run")
    canonical: BuiltEngine | None = Field(
        default=None, exclude=True, description="its form without a target's kernels, if on disk"
    )


def build_engine(
    graph: ir.Model,
    kind: EngineKind,
    layer_index: int | None,
    model: ModelSpec,
    precision: PrecisionSpec,
    target: str,
    reader: TensorReader,
    directory: Path,
    *,
    is_draft: bool = False,
) -> BuiltEngine:
    """Write ``engines/<target>/<engine>.onnx`` and ``.weights`` under ``directory``.

    ``graph`` is the canonical graph of ``trace_engine``, which is not changed. Files of the same
    name are replaced, never overwritten; both are on disk (fsync) on return. ``is_draft``: only
    drafts run the engine; a draft layer's parameters have the names of layer ``layer_index``. Peak
    memory is about one weight and, if it is quantised, its quantised copy.

    Raises CheckpointError for weights that ``precision`` can't hold, and VerificationError if the
    written graph's inputs, outputs or dtypes differ from the request.
    """
    lowered = lowering_of(target)(graph, kind, model, precision)

    def tensors(parameter: Parameter) -> dict[str, Array]:
        try:
            return encoded(parameter.name, parameter.load(reader), lowered)
        except NotFiniteError:
            raise weight_error(parameter, reader, precision.dtype) from None

    return write_engine(
        lowered, kind, layer_index, model, target, tensors, directory, is_draft=is_draft
    )


def write_engine(
    lowered: LoweredEngine,
    kind: EngineKind,
    layer_index: int | None,
    model: ModelSpec,
    target: str,
    tensors: Callable[[Parameter], dict[str, Array]],
    directory: Path,
    *,
    is_draft: bool = False,
) -> BuiltEngine:
    """Write a lowered graph and each parameter's ``tensors`` by name; see ``build_engine``."""
    name = engine_name(kind, layer_index, is_draft=is_draft)
    folder = Path("engines") / target
    (directory / folder).mkdir(parents=True, exist_ok=True)
    graph_path, weights_path = folder / f"{name}.onnx", folder / f"{name}.weights"
    records = []
    stored_bytes = {}
    parameters = engine_parameters(kind, model, layer_index)
    if parameters:
        with WeightsFile(directory / weights_path) as weights:
            for parameter in parameters:
                stored_bytes[parameter.name] = store_tensors(tensors(parameter), lowered, weights)
        records.append(FileRecord(path=str(weights_path), size=weights.size, sha256=weights.sha256))
    spec = EngineSpec(
        name=name,
        kind=kind,
        layer_index=None if is_draft else layer_index,
        graph=str(graph_path),
        weights=tuple(record.path for record in records),
        inputs=lowered.signature.inputs,
        outputs=lowered.signature.outputs,
        step_bytes=step_bytes(stored_bytes, parameters),
    )
    return _with_graph(lowered, spec, model, target, directory, *records)


def write_narrow_head(
    head: BuiltEngine, model: ModelSpec, precision: PrecisionSpec, form: str, tokens: int
) -> BuiltEngine:
    """Write a graph for the first ``tokens`` of the vocabulary beside that of ``head``.

    Its only file is the graph, which refers to the head's weights. It is on disk (fsync) on return.
    """
    source = head.directory / head.spec.graph
    signature = Signature(head.spec.inputs, head.spec.outputs)
    narrow = narrow_head(source, signature, model, precision, tokens)
    path = source.with_name(f"{DRAFT_HEAD}.onnx")
    spec = head.spec.model_copy(
        update={
            "name": DRAFT_HEAD,
            "graph": path.relative_to(head.directory).as_posix(),
            "outputs": narrow.signature.outputs,
            "step_bytes": external_bytes(narrow.graph),
        }
    )
    return _with_graph(narrow, spec, model, form, head.directory)


def _with_graph(
    lowered: LoweredEngine,
    spec: EngineSpec,
    model: ModelSpec,
    target: str,
    directory: Path,
    *weights: FileRecord,
) -> BuiltEngine:
    """Write the graph where ``spec`` names it, check its dtypes, and return the engine."""
    content = ir.to_proto(lowered.graph).SerializeToString(deterministic=True)
    write_new(directory / spec.graph, content)
    check_dtypes(onnx.load_from_string(content).graph, spec, model, lowered.precision, target)
    sha256 = hashlib.sha256(content).hexdigest()
    graph = FileRecord(path=spec.graph, size=len(content), sha256=sha256)
    return BuiltEngine(spec=spec, files=(graph, *weights), directory=directory)


def encoded(name: str, array: Array, lowered: LoweredEngine) -> dict[str, Array]:
    """Return the graph's tensors of one parameter. Raises NotFiniteError."""
    if name not in lowered.quantizers:
        stored = lowered.graph.graph.initializers[name].dtype
        assert stored is not None, name
        require_range(array, stored.numpy())
        return {name: array}
    encoded = lowered.quantizers[name].encode(array)
    return {f"{name}.{suffix}": tensor for suffix, tensor in encoded.items()}


def store_tensors(
    tensors: Mapping[str, Array], lowered: LoweredEngine, weights: WeightsFile
) -> int:
    """Write tensors and bind the initialisers of their names; return the size in bytes."""
    stored_bytes = 0
    for tensor_name, tensor in tensors.items():
        value = lowered.graph.graph.initializers[tensor_name]
        assert value.dtype is not None, tensor_name
        assert value.shape is not None, tensor_name
        assert tuple(value.shape) == tensor.shape, (tensor_name, value.shape, tensor.shape)
        offset, length = weights.append(tensor, value.dtype.numpy())
        value.const_value = ir.ExternalTensor(
            weights.path.name,
            offset,
            length,
            value.dtype,
            shape=ir.Shape(tensor.shape),
            name=tensor_name,
            base_dir=weights.path.parent,
        )
        stored_bytes += length
    return stored_bytes


def step_bytes(stored_bytes: Mapping[str, int], parameters: Sequence[Parameter]) -> int:
    """Return the bytes read to run one token: all weights, but one row of each embedding table.

    ``stored_bytes`` maps each parameter to the bytes stored for it.
    """
    table_rows = {each.name: each.shape[0] for each in parameters if each.is_table}
    return sum(size // table_rows.get(name, 1) for name, size in stored_bytes.items())


def write_new(path: Path, data: bytes) -> None:
    """Write a new file durably, replacing an older one of that name."""
    path.unlink(missing_ok=True)
    with naming_file(path), path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@dataclass
class WeightsFile:
    """Writes tensors to aligned offsets of a new file and hashes them on the way.

    A context manager; on a normal exit the file is on disk (fsync), and ``size`` and ``sha256``
    are final. An older file of that name is unlinked, not overwritten, because a process may have
    mapped it.
    """

    path: Path
    size: int = 0
    _hash: Any = field(default_factory=hashlib.sha256)

    def __enter__(self) -> Self:
        self.path.unlink(missing_ok=True)
        self._file = self.path.open("xb")
        return self

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        with naming_file(self.path), self._file:
            if error is None:
                self._file.flush()
                os.fsync(self._file.fileno())

    @property
    def sha256(self) -> str:
        """Return the SHA-256, in hexadecimal, of the bytes written so far."""
        return str(self._hash.hexdigest())

    def append(self, array: Array, dtype: DTypeLike) -> tuple[int, int]:
        """Write ``array``, of any strides, as ``dtype`` in C order; return its offset and length.

        int4 is packed as ONNX requires: two elements per byte, the first in the low nibble.
        """
        self._write(bytes(-self.size % WEIGHTS_ALIGNMENT))
        offset = self.size
        if np.dtype(dtype) == ml_dtypes.int4:
            array, dtype = _packed(array), np.uint8
        for block in row_blocks(np.atleast_1d(array)):
            stored = np.ascontiguousarray(block, dtype)
            self._write(stored.reshape(-1).view(np.uint8).data)  # bfloat16 has no buffer interface
        return offset, self.size - offset

    def _write(self, data: bytes | memoryview) -> None:
        with naming_file(self.path):
            self._file.write(data)
        self._hash.update(data)
        self.size += len(data)


def _packed(array: Array) -> Array:
    """Pack int4 of any shape to uint8 [ceil(elements / 2)]."""
    codes = np.ascontiguousarray(array, np.int8).reshape(-1).view(np.uint8)
    packed = codes[::2] & 15
    packed[: len(codes) // 2] |= codes[1::2] << 4
    return packed


_BLOCK_BYTES = 1 << 24  # per block of rows


def row_blocks(array: Array) -> Iterator[Array]:
    """Yield consecutive rows of ``array`` in blocks of up to 16 MiB, or a single larger row."""
    rows = array.shape[0]
    step = max(1, _BLOCK_BYTES * rows // max(1, array.nbytes))
    for start in range(0, rows, step):
        yield array[start : start + step]


def require_range(array: Array, dtype: DTypeLike) -> None:
    """Raise NotFiniteError if a value is NaN, infinite, or too large for ``dtype``."""
    for block in row_blocks(np.atleast_1d(array)):
        with np.errstate(over="ignore"):  # `finite` refuses the result
            finite(np.array([block.max(), block.min()]).astype(dtype))


def weight_error(parameter: Parameter, reader: TensorReader, dtype: FloatType) -> CheckpointError:
    """Return an error that names the tensors of ``parameter`` that ``dtype`` can't hold."""
    factors = parameter.factors or (1.0,) * len(parameter.sources)
    peaks = {
        name: abs(factor) * _peak(reader.read(name))
        for name, factor in zip(parameter.sources, factors, strict=True)
    }
    name, peak = max(peaks.items(), key=lambda item: (not np.isfinite(item[1]), item[1]))
    most = float(ml_dtypes.finfo(np.dtype(dtype)).max)  # type: ignore[no-untyped-call]
    if not np.isfinite(peak) or peak <= most:
        return CheckpointError(name, NOT_FINITE)
    scaled = ", by the factors of config.json" if parameter.factors else ""
    others = "float32" if dtype == "bfloat16" else "bfloat16 or float32"
    return CheckpointError(
        name,
        f"has {peak:.6g} as its largest magnitude{scaled}; allowed: up to {most:.6g}, as "
        f"{dtype} holds; export with --dtype {others}",
    )


def _peak(array: Array) -> float:
    extremes = [(block.max(), block.min()) for block in row_blocks(np.atleast_1d(array))]
    return float(np.abs(np.array(extremes, np.float32)).max())
