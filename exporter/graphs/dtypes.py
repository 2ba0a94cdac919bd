"""Check of a written graph's dtypes against the requested precision."""

from __future__ import annotations

from collections.abc import Iterable

import onnx

from ...engines.errors import VerificationError
from ...engines.manifest import EngineSpec, ModelSpec, PrecisionSpec
from ..quantization.quantize import stored_layout


def check_dtypes(
    graph: onnx.GraphProto,
    spec: EngineSpec,
    model: ModelSpec,
    precision: PrecisionSpec,
    target: str,
) -> None:
    """Check inputs, outputs and weights of a graph that was read back from its file.

    ``precision`` is the requested one; a canonical engine's has no quantisation. ``target``
    determines the form of quantised weights. Raises VerificationError naming every tensor that is
    missing, unexpected or of another dtype.
    """
    weights = stored_layout(spec.kind, model, precision, target)
    wanted = {
        **{f"input {tensor.name}": str(tensor.dtype) for tensor in spec.inputs},
        **{f"output {tensor.name}": str(tensor.dtype) for tensor in spec.outputs},
        **{f"weight {name}": dtype for name, (dtype, _) in weights.items()},
    }
    seen = {
        **{f"input {value.name}": _value_dtype(value) for value in graph.input},
        **{f"output {value.name}": _value_dtype(value) for value in graph.output},
        **{f"weight {name}": dtype for name, dtype in _external_dtypes(graph.initializer)},
    }
    problems = [
        f"{name} is {seen.get(name, 'missing')}; requested: {wanted.get(name, 'nothing')}"
        for name in sorted(seen.keys() | wanted.keys())
        if seen.get(name) != wanted.get(name)
    ]
    if problems:
        raise VerificationError(f"engine {spec.name}", *problems)


def _value_dtype(value: onnx.ValueInfoProto) -> str:
    return _dtype_name(value.type.tensor_type.elem_type)


def _external_dtypes(tensors: Iterable[onnx.TensorProto]) -> Iterable[tuple[str, str]]:
    """Yield names and dtypes of the weights; small constants are in the graph itself."""
    for tensor in tensors:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            yield tensor.name, _dtype_name(tensor.data_type)


def _dtype_name(elem_type: int) -> str:
    return str(onnx.helper.tensor_dtype_to_np_dtype(elem_type))
