"""The graph with which a device guesses the token that the host will draw from the candidates.

It repeats the host's rule (`runtime.tokens.drawing`) in float32 on the K most probable tokens of
each row. The host draws every token itself, so a wrong guess costs a step and changes no text.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ..manifest import EngineSpec, TensorRole, TensorSpec

# The manifest has no role for the draws, which no bundle's engine reads, so this one is reused.
DRAWS = TensorRole.TOP_LOGITS
# Columns of the draws, float32 [R, 6]: 1 / temperature; the uniform random number; the share that
# top_p keeps; a lower bound on the total that this is a share of (1 for the whole vocabulary);
# min_p; and the index of the last candidate that top_k keeps.
_COLUMNS = ("inverse", "uniform", "top_p", "least_total", "min_p", "last")
NUM_COLUMNS = len(_COLUMNS)

# Operator, inputs, output and integer attributes. All have CUDA kernels; none depends on R, V or K.
_NODES: Sequence[tuple[str, str, str, dict[str, int]]] = (
    ("Split", "draws", " ".join(_COLUMNS), {"axis": 1, "num_outputs": NUM_COLUMNS}),
    ("Mul", "logits inverse", "scaled", {}),
    ("Softmax", "scaled", "shares", {"axis": 1}),
    ("GatherElements", "shares top_token_ids", "ranked", {"axis": 1}),  # [R, K], largest first
    # min_p and top_k, which also keeps candidates that tie with its last one
    ("ReduceMax", "ranked one", "best", {"keepdims": 1}),
    ("Mul", "best min_p", "least_by_min_p", {}),
    ("Cast", "last", "last_place", {"to": 7}),
    ("GatherElements", "ranked last_place", "least_by_top_k", {"axis": 1}),
    ("Max", "least_by_min_p least_by_top_k", "least", {}),
    ("GreaterOrEqual", "ranked least", "is_kept", {}),
    ("Where", "is_kept ranked zero", "kept", {}),
    # top_p: a token is kept if the tokens before it hold less than the share
    ("ReduceSum", "kept one", "kept_total", {"keepdims": 1}),
    ("Max", "kept_total least_total", "total", {}),
    ("Mul", "top_p total", "nucleus", {}),
    ("CumSum", "kept one", "before", {"exclusive": 1}),
    ("Less", "before nucleus", "is_inside", {}),
    ("Where", "is_inside kept zero", "weights", {}),
    # The last token id at which the sum of the weights of smaller ids is at most the uniform share.
    ("ReduceSum", "weights one", "weight_total", {"keepdims": 1}),
    ("Mul", "uniform weight_total", "target", {}),
    ("Cast", "top_token_ids", "ids", {"to": 1}),
    ("Unsqueeze", "ids two", "own_ids", {}),  # [R, K, 1]
    ("Unsqueeze", "ids one", "other_ids", {}),  # [R, 1, K]
    ("Unsqueeze", "weights one", "other_weights", {}),
    ("Less", "other_ids own_ids", "is_smaller", {}),
    ("Where", "is_smaller other_weights zero", "smaller_weights", {}),
    ("ReduceSum", "smaller_weights two", "sum_before", {"keepdims": 0}),  # [R, K]
    ("LessOrEqual", "sum_before target", "is_reached", {}),
    ("Greater", "weights zero", "has_weight", {}),
    ("And", "is_reached has_weight", "is_possible", {}),
    ("Where", "is_possible ids zero", "possible_ids", {}),  # 0 if no token is possible (NaN)
    ("ReduceMax", "possible_ids one", "chosen", {"keepdims": 1}),
    ("Cast", "chosen", "input_ids", {"to": 7}),
)
_FLOAT, _INT64 = 1, 7  # ONNX's element types
_INTEGER = 2  # ONNX's attribute type
_DTYPES = {"float32": _FLOAT, "int64": _INT64}


def choice_spec(candidates: EngineSpec) -> EngineSpec:
    """Return the spec of the engine that chooses among the outputs of ``candidates``."""
    role, top_ids = TensorRole, candidates.tensor(TensorRole.TOP_TOKEN_IDS)
    inputs = (
        candidates.tensor(role.LOGITS).model_copy(update={"name": "logits"}),
        top_ids.model_copy(update={"name": "top_token_ids"}),
        TensorSpec(name="draws", role=DRAWS, dtype="float32", shape=("R", NUM_COLUMNS)),
    )
    chosen = TensorSpec(name="input_ids", role=role.INPUT_IDS, dtype="int64", shape=("R", 1))
    return candidates.model_copy(update={"name": "choice", "inputs": inputs, "outputs": (chosen,)})


def choice_graph(spec: EngineSpec) -> bytes:
    """Return the graph of `choice_spec` as a serialised ONNX model of opset 18.

    It is written here, field by field, because the runtime does without the onnx package.
    """
    graph = [_field(1, _node(*node)) for node in _NODES]
    graph.append(_field(2, spec.name))
    graph.append(_field(5, _field(2, _FLOAT) + _field(8, "zero") + _field(9, struct.pack("<f", 0))))
    for name, axis in (("one", 1), ("two", 2)):
        axes = (
            _field(1, 1) + _field(2, _INT64) + _field(8, name) + _field(9, struct.pack("<q", axis))
        )
        graph.append(_field(5, axes))
    graph += [_field(11, _described(tensor)) for tensor in spec.inputs]
    graph += [_field(12, _described(tensor)) for tensor in spec.outputs]
    return _field(1, 8) + _field(7, b"".join(graph)) + _field(8, _field(1, "") + _field(2, 18))


def _node(operator: str, inputs: str, outputs: str, attributes: dict[str, int]) -> bytes:
    return b"".join(
        (
            *(_field(1, name) for name in inputs.split()),
            *(_field(2, name) for name in outputs.split()),
            _field(4, operator),
            *(
                _field(5, _field(1, name) + _field(3, value) + _field(20, _INTEGER))
                for name, value in attributes.items()
            ),
        )
    )


def _described(tensor: TensorSpec) -> bytes:
    """Return name, type and shape of an input or output."""
    shape = b"".join(
        _field(1, _field(1 if isinstance(size, int) else 2, size)) for size in tensor.shape
    )
    described = _field(1, _DTYPES[tensor.dtype]) + _field(2, shape)
    return _field(1, tensor.name) + _field(2, _field(1, described))


def _field(number: int, value: int | str | bytes) -> bytes:
    """Return one field of a protobuf message."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    content = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Return a number ≥ 0 with seven bits per byte, lowest first."""
    content = bytearray()
    while value > 0x7F:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*content, value))
