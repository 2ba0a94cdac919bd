"""Checks of parsed networks against requests, and of plans against the manifest and machine."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import BundleError, EnvironmentMismatchError
from ..manifest import PAST_OF, BuildSpec, EngineSpec, KVBucket, TensorSpec
from .library import TensorRtLibrary

if TYPE_CHECKING:
    from ..bundle import EngineBundle

_OLDEST_COMPATIBLE = (8, 0)  # compute capability; hardware-compatible plans are for Ampere and up
# The parser drops unknown inputs, such as Attention's nonpad_kv_seqlen, with only a warning; the
# engine would compute something other than the graph.
_UNUSED = re.compile(r"\bunused\b", re.IGNORECASE)
# Logged for every int64 input and output, which are intended and checked.
_INT64_BINDING = re.compile(r"Make sure (input|output) \S+ has Int64 binding")
_HINTS: Mapping[str, str] = {  # remedies by a part of the builder's message
    "not supported by a dedicated kernel": (
        "this TensorRT has no fused attention for this head size, number of heads and dtype; "
        "float32 engines do without it: use --dtype float32"
    ),
    "HW-specific datatypes": "choose a --dtype and --quantize that the GPU knows",
    "FP32 GEMM is not supported": "this GPU has no float32 products here; use --dtype float16",
    "no tactics to implement the operation within workspace": "allow more by workspace",
}


def check_environment(
    bundle: EngineBundle, library: TensorRtLibrary, compute_capability: str
) -> None:
    """Raise EnvironmentMismatchError unless this library and GPU run the bundle's plans.

    A plan runs on the TensorRT version and compute capability that it was built with; a
    version-compatible one also on later minor versions, and a hardware-compatible one on any GPU of
    compute capability 8.0 and above.
    """
    build = bundle.manifest.build
    if build is None:
        raise BundleError(str(bundle.path), "has no record of its build; build it again")
    problems = []
    if not _is_version_accepted(build, library.version):
        problems.append(
            f"engines were built by TensorRT {build.version}; installed here: {library.version}"
        )
    if not _is_gpu_accepted(build, compute_capability):
        problems.append(
            f"engines were built for compute capability {build.compute_capability}; this GPU has "
            f"{compute_capability}"
        )
    if problems:
        rebuild = f"skipdec build {bundle.path} --target {library.target}"
        raise EnvironmentMismatchError(
            str(bundle.path), *problems, f"build it again on this machine: {rebuild}"
        )


def check_engine(
    engine: Any,  # noqa: ANN401  (trt.ICudaEngine)
    spec: EngineSpec,
    bucket: KVBucket | None,
    library: TensorRtLibrary,
) -> None:
    """Raise BundleError, listing all problems, unless the engine's IO matches ``spec``.

    Compares names, directions, dtypes and fixed dimensions (T is the bucket's), and checks that
    present_key and present_value share the memory of past_key and past_value.
    """
    names = {engine.get_tensor_name(index) for index in range(engine.num_io_tensors)}
    expected = {tensor.name for tensor in (*spec.inputs, *spec.outputs)}
    problems = []
    if names != expected:
        problems.append(f"has the tensors {sorted(names)}; the manifest says {sorted(expected)}")
    else:
        modes = library.module.TensorIOMode
        for mode, tensors in ((modes.INPUT, spec.inputs), (modes.OUTPUT, spec.outputs)):
            for tensor in tensors:
                problems += _tensor_problems(engine, tensor, mode, bucket, library)
        problems += _alias_problems(engine, spec)
    if problems:
        raise BundleError(f"engine {spec.name}", *problems, "build the bundle again")


def _tensor_problems(
    engine: Any,  # noqa: ANN401
    tensor: TensorSpec,
    mode: Any,  # noqa: ANN401
    bucket: KVBucket | None,
    library: TensorRtLibrary,
) -> Iterator[str]:
    if engine.get_tensor_mode(tensor.name) != mode:
        yield f"{tensor.name} is not an {mode.name.lower()}"
    dtype = engine.get_tensor_dtype(tensor.name)
    if dtype != data_types(library)[tensor.dtype]:
        yield f"{tensor.name} is {dtype.name}; the manifest says {tensor.dtype}"
    sizes = {} if bucket is None else {"T": bucket.capacity}
    expected = [sizes.get(str(size), size) for size in tensor.shape]
    seen = tuple(engine.get_tensor_shape(tensor.name))  # -1: set when bound
    matches = len(seen) == len(expected) and all(
        actual == -1 if isinstance(size, str) else actual == size
        for size, actual in zip(expected, seen, strict=True)
    )
    if not matches:
        yield f"{tensor.name} is {seen}; expected {tuple(expected)}, -1 for a symbol"


def _alias_problems(engine: Any, spec: EngineSpec) -> Iterator[str]:  # noqa: ANN401
    """Yield cache outputs that are not updated in place: a separate buffer holds one token."""
    for output in spec.outputs:
        if output.role in PAST_OF:
            wanted = spec.tensor(PAST_OF[output.role]).name
            seen = engine.get_aliased_input_tensor(output.name)
            if seen != wanted:
                yield f"{output.name} is written to {seen}; expected {wanted}, in place"


def data_types(library: TensorRtLibrary) -> Mapping[str, Any]:
    """Return TensorRT's data types by their names in manifests."""
    types = library.module.DataType
    return {
        "float32": types.FLOAT,
        "float16": types.HALF,
        "bfloat16": types.BF16,
        "int64": types.INT64,
        "int32": types.INT32,
        "uint8": types.UINT8,
        "int8": types.INT8,
        "bool": types.BOOL,
    }


def _is_version_accepted(build: BuildSpec, installed: str) -> bool:
    if not build.version_compatible:
        return build.version == installed
    built, here = _numbers(build.version), _numbers(installed)
    return built[:1] == here[:1] and built <= here


def _is_gpu_accepted(build: BuildSpec, compute_capability: str) -> bool:
    if not build.hardware_compatible:
        return build.compute_capability == compute_capability
    both = (build.compute_capability, compute_capability)
    return all(_numbers(capability) >= _OLDEST_COMPATIBLE for capability in both)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def layer_counts(network: Any) -> dict[str, int]:  # noqa: ANN401  (trt.INetworkDefinition)
    """Return the number of layers by type, with the names of ``trt.LayerType``."""
    types = (network.get_layer(index).type.name for index in range(network.num_layers))
    return dict(sorted(Counter(types).items()))


def network_problems(
    network: Any,  # noqa: ANN401
    inputs: Iterable[TensorSpec],
    outputs: Iterable[TensorSpec],
    expected_layers: Mapping[str, int],
    library: TensorRtLibrary,
) -> Iterator[str]:
    """Yield the differences between ``network`` and the request."""
    seen_inputs = [network.get_input(index) for index in range(network.num_inputs)]
    seen_outputs = [network.get_output(index) for index in range(network.num_outputs)]
    yield from _interface_problems("input", seen_inputs, inputs, library)
    yield from _interface_problems("output", seen_outputs, outputs, library)
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


def _interface_problems(
    direction: str,
    tensors: Iterable[Any],  # trt.ITensor
    specs: Iterable[TensorSpec],
    library: TensorRtLibrary,
) -> Iterator[str]:
    seen = {tensor.name: tensor for tensor in tensors}
    wanted = {spec.name: spec for spec in specs}
    for name in sorted(seen.keys() | wanted.keys()):
        if name not in seen:
            yield f"{direction} {name} is missing from the network"
        elif name not in wanted:
            yield f"{direction} {name} was not requested"
        else:
            yield from _differences(f"{direction} {name}", seen[name], wanted[name], library)


def _differences(
    subject: str,
    tensor: Any,  # noqa: ANN401  (trt.ITensor)
    spec: TensorSpec,
    library: TensorRtLibrary,
) -> Iterator[str]:
    if tensor.dtype != data_types(library)[spec.dtype]:
        names = {dtype: name for name, dtype in data_types(library).items()}
        seen = names.get(tensor.dtype, tensor.dtype.name)
        yield f"{subject} is {seen}; requested: {spec.dtype}"
    shape = tuple(tensor.shape)  # -1 for a dynamic dimension
    if len(shape) != len(spec.shape) or any(
        isinstance(wanted, int) and wanted != size
        for wanted, size in zip(spec.shape, shape, strict=True)
    ):
        yield f"{subject} has shape {shape}; requested: {spec.shape}"
