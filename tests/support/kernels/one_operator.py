"""Open sessions of single operators, and list the instruction sets of this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from skipdec.engines.kernels.library import DOMAIN, find_library

Array = np.ndarray[Any, Any]


def available_instruction_sets() -> tuple[str, ...]:
    """Return the instruction sets that the library can use here; none if it was not compiled."""
    library = find_library()
    return () if library is None else library.instruction_sets


def operator_session(
    name: str,
    operands: Sequence[str],
    constants: Mapping[str, Array],
    attributes: Mapping[str, int | float],
    types: Mapping[str, int] | None = None,
    outputs: Sequence[str] = ("y",),
    *,
    threads: int,
) -> onnxruntime.InferenceSession:
    """Open a session of one node; ``operands`` are its inputs by position, "" for an omitted one.

    Operands in ``constants`` are initialisers, all others inputs of the graph, float32 unless
    ``types`` names another type. Shapes are free.
    """
    dtypes = types or {}
    node = helper.make_node(name, operands, outputs, domain=DOMAIN, **attributes)

    def value(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, dtypes.get(name, onnx.TensorProto.FLOAT), None)

    graph = helper.make_graph(
        [node],
        "one_operator",
        [value(name) for name in operands if name and name not in constants],
        [value(name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return kernel_session(model, threads)


def kernel_session(model: onnx.ModelProto, threads: int) -> onnxruntime.InferenceSession:
    """Open a session of ``model``, whose nodes may be skipdec's operators."""
    library = find_library()
    assert library is not None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # a refusal is an error
    library.register(options, threads)
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
