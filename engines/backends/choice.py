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
# Columns of the draws, float32 [R, 7]: 1 / temperature; the two keys of the hash that gives each
# token its random number; the share that top_p keeps; a lower bound on the total that this is a
# share of (1 for the whole vocabulary); min_p; the index of the last candidate that top_k keeps.
_COLUMNS = ("inverse", "high", "low", "top_p", "least_total", "min_p", "last")
NUM_COLUMNS = len(_COLUMNS)

# Factors of the hash of a token id and two keys, as in the kernels' exponentials.inc.h.
ID_FACTOR, HIGH_FACTOR, LOW_FACTOR = 0x1E3779B1, 0x5851F42D, 0x14057B7F

# Initialisers: float32 scalars, and int64 [1], which are axes too. A hash times ``unit`` stays so
# far below 1 that a logarithm is finite.
_FLOATS = {"zero": 0.0, "unit": (1 - 2**-20) / 2**31, "below_one": 1 - 2**-24}
_INTEGERS = {
    "one": 1,
    "two": 2,
    "shift": 2**15,
    "modulus": 2**31,
    "id_factor": ID_FACTOR,
    "high_factor": HIGH_FACTOR,
    "low_factor": LOW_FACTOR,
}


def _mixed(x: str, result: str) -> tuple[tuple[str, str, str, dict[str, int]], ...]:
    """Return the nodes that compute x(2x + 1) of x modulo 2^31, which is below 2^31 again."""
    return (
        ("Mod", f"{x} modulus", f"{x}_reduced", {}),
        ("Mul", f"{x}_reduced two", f"{x}_doubled", {}),
        ("Add", f"{x}_doubled one", f"{x}_odd", {}),
        ("Mul", f"{x}_reduced {x}_odd", f"{x}_squared", {}),
        ("Mod", f"{x}_squared modulus", result, {}),
    )


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
    # The hash of a token's id, below 2^31, as `runtime.tokens.drawing.exponentials` computes it
    ("Cast", "high", "high_key", {"to": 7}),
    ("Cast", "low", "low_key", {"to": 7}),
    ("Mul", "high_key high_factor", "high_term", {}),
    ("Mul", "low_key low_factor", "low_term", {}),
    ("Mul", "top_token_ids id_factor", "id_term", {}),
    ("Add", "id_term high_term", "hash_0", {}),
    *_mixed("hash_0", "hash_1"),
    ("Div", "hash_1 shift", "upper_1", {}),
    ("Add", "hash_1 upper_1", "added_1", {}),
    ("Add", "added_1 low_term", "hash_2", {}),
    *_mixed("hash_2", "hash_3"),
    ("Div", "hash_3 shift", "upper_3", {}),
    ("Add", "hash_3 upper_3", "hash_4", {}),
    *_mixed("hash_4", "hash"),
    # The candidate with the largest weight per exponentially distributed number
    ("Cast", "hash", "hash_float", {"to": 1}),
    ("Mul", "hash_float unit", "share", {}),
    ("Sub", "below_one share", "rest", {}),
    ("Log", "rest", "logarithm", {}),
    ("Div", "weights logarithm", "quotients", {}),  # negative: the least one wins
    ("ArgMin", "quotients", "winner", {"axis": 1, "keepdims": 1}),
    ("GatherElements", "top_token_ids winner", "input_ids", {"axis": 1}),
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
    for name, number in _FLOATS.items():
        tensor = _field(2, _FLOAT) + _field(8, name) + _field(9, struct.pack("<f", number))
        graph.append(_field(5, tensor))
    for name, integer in _INTEGERS.items():
        tensor = _field(1, 1) + _field(2, _INT64) + _field(8, name)
        graph.append(_field(5, tensor + _field(9, struct.pack("<q", integer))))
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
