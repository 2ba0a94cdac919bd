"""Comparison of a graph's inputs and outputs with the manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnxruntime

from ..manifest import DType, EngineSpec

_ELEMENT_TYPES: Mapping[DType, str] = {  # where ONNX Runtime's name differs
    "float32": "float",
}


def signature_problems(session: onnxruntime.InferenceSession, spec: EngineSpec) -> Iterator[str]:
    """Yield the differences between a loaded graph's inputs and outputs and ``spec``."""
    for kind, nodes, tensors in (
        ("inputs", session.get_inputs(), spec.inputs),
        ("outputs", session.get_outputs(), spec.outputs),
    ):
        expected = {tensor.name: tensor for tensor in tensors}
        if sorted(node.name for node in nodes) != sorted(expected):
            names = ", ".join(node.name for node in nodes)
            yield f"has the {kind} {names}; the manifest says {', '.join(expected)}"
            continue
        for node in nodes:
            tensor = expected[node.name]
            wanted = f"tensor({_ELEMENT_TYPES.get(tensor.dtype, tensor.dtype)})"
            if node.type != wanted:
                yield f"{node.name} is a {node.type}; the manifest says {tensor.dtype}"
            if node.shape and not _can_be(tensor.shape, node.shape):
                yield f"{node.name} is {tuple(node.shape)}; the manifest says {tensor.shape}"


def _can_be(wanted: Sequence[int | str], seen: Sequence[int | str | None]) -> bool:
    """Return True if two shapes agree in every dimension that is a number in both."""
    return len(wanted) == len(seen) and all(
        first == second or not (isinstance(first, int) and isinstance(second, int))
        for first, second in zip(wanted, seen, strict=True)
    )
