"""Comparison of a parsed network and its log messages with the request."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..manifest import DType, TensorSpec

# The parser drops unknown inputs, such as Attention's nonpad_kv_seqlen, with only a warning; the
# engine would compute something else than the graph.
_UNUSED = re.compile(r"\bunused\b", re.IGNORECASE)
# Logged for every int64 input and output, which are intended and checked.
_INT64_BINDING = re.compile(r"Make sure (input|output) \S+ has Int64 binding")
_HINTS: Mapping[str, str] = {
    "not supported by a dedicated kernel": (
        "this TensorRT has no fused attention for this head size, number of heads and dtype; "
        "float32 engines do without it: use --dtype float32"
    ),
    "HW-specific datatypes": "choose a --dtype and --quantize that the GPU knows",
    "FP32 GEMM is not supported": "this GPU has no float32 products here; use --fp16",
    "no tactics to implement the operation within workspace": "allow more with --workspace",
}
"""Remedies by a part of the builder's message."""

_DTYPES: Mapping[str, DType] = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "INT64": "int64",
    "INT32": "int32",
    "UINT8": "uint8",
    "INT8": "int8",
    "BOOL": "bool",
}


def layer_counts(network: Any) -> dict[str, int]:  # noqa: ANN401  (trt.INetworkDefinition)
    """Return the number of layers by type, with the names of ``trt.LayerType``."""
    types = (network.get_layer(index).type.name for index in range(network.num_layers))
    return dict(sorted(Counter(types).items()))


def network_problems(
    network: Any,  # noqa: ANN401
    inputs: Iterable[TensorSpec],
    outputs: Iterable[TensorSpec],
    expected_layers: Mapping[str, int],
) -> Iterator[str]:
    """Yield the differences between ``network`` and the request."""
    seen_inputs = [network.get_input(index) for index in range(network.num_inputs)]
    seen_outputs = [network.get_output(index) for index in range(network.num_outputs)]
    yield from _tensor_problems("input", seen_inputs, inputs)
    yield from _tensor_problems("output", seen_outputs, outputs)
    counts = layer_counts(network)
    for layer_type, expected in expected_layers.items():
        if (seen := counts.get(layer_type, 0)) != expected:
            yield (
                f"has {seen} {layer_type} layers; expected: {expected}; the parser split the graph "
                "in another way, which would run slower or need copies of the KV cache"
            )


def worth_reporting(warning: str) -> bool:
    """Return False for warnings that are expected."""
    return _INT64_BINDING.search(warning) is None


def warning_problems(warnings: Iterable[str]) -> list[str]:
    """Return problems for those ``warnings`` that say that part of the graph was ignored."""
    return [
        f"TensorRT ignores part of the graph ({warning}); an engine without it would compute "
        "something else"
        for warning in warnings
        if _UNUSED.search(warning)
    ]


def failure_hint(messages: Iterable[str]) -> str | None:
    """Return a remedy for the builder's error ``messages``, if one is known."""
    text = "\n".join(messages)
    return next((hint for part, hint in _HINTS.items() if part in text), None)


def _tensor_problems(
    direction: str,
    tensors: Iterable[Any],  # trt.ITensor
    specs: Iterable[TensorSpec],
) -> Iterator[str]:
    seen = {tensor.name: tensor for tensor in tensors}
    wanted = {spec.name: spec for spec in specs}
    for name in sorted(seen.keys() | wanted.keys()):
        if name not in seen:
            yield f"{direction} {name} is missing from the network"
        elif name not in wanted:
            yield f"{direction} {name} was not requested"
        else:
            yield from _differences(f"{direction} {name}", seen[name], wanted[name])


def _differences(subject: str, tensor: Any, spec: TensorSpec) -> Iterator[str]:  # noqa: ANN401
    dtype = _DTYPES.get(tensor.dtype.name, tensor.dtype.name)
    if dtype != spec.dtype:
        yield f"{subject} is {dtype}; requested: {spec.dtype}"
    shape = tuple(tensor.shape)  # -1 for a dynamic dimension
    if len(shape) != len(spec.shape) or any(
        isinstance(wanted, int) and wanted != size
        for wanted, size in zip(spec.shape, shape, strict=True)
    ):
        yield f"{subject} has shape {shape}; requested: {spec.shape}"
