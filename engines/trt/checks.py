"""Checks of a plan against this machine and its manifest, and TensorRT's error messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import BundleError, EnvironmentMismatchError, SkipDecError
from ..manifest import BuildSpec, EngineSpec, KVBucket, TensorRole, TensorSpec
from .library import TensorRtLibrary

if TYPE_CHECKING:
    from ..bundle import EngineBundle

_OLDEST_COMPATIBLE = (8, 0)  # compute capability; hardware-compatible plans are for Ampere and up
_ALIASES = {
    TensorRole.PRESENT_KEY: TensorRole.PAST_KEY,
    TensorRole.PRESENT_VALUE: TensorRole.PAST_VALUE,
}
_MAX_RECORDS = 32  # the first ones reveal the cause


def check_environment(
    bundle: EngineBundle, library: TensorRtLibrary, compute_capability: str
) -> None:
    """Raise EnvironmentMismatchError unless this library and GPU run the bundle's plans.

    A plan runs on the TensorRT version and compute capability that it was built with. A
    version-compatible plan also runs on later versions with the same major version, and a
    hardware-compatible plan on any GPU of compute capability 8.0 and above.
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
) -> list[str]:
    problems = []
    if engine.get_tensor_mode(tensor.name) != mode:
        problems.append(f"{tensor.name} is not an {mode.name.lower()}")
    dtype = engine.get_tensor_dtype(tensor.name)
    if dtype != data_types(library)[tensor.dtype]:
        problems.append(f"{tensor.name} is {dtype.name}; the manifest says {tensor.dtype}")
    sizes = {} if bucket is None else {"T": bucket.capacity}
    expected = [sizes.get(str(size), size) for size in tensor.shape]
    seen = tuple(engine.get_tensor_shape(tensor.name))  # -1: set when bound
    matches = len(seen) == len(expected) and all(
        actual == -1 if isinstance(size, str) else actual == size
        for size, actual in zip(expected, seen, strict=True)
    )
    if not matches:
        problems.append(f"{tensor.name} is {seen}; expected {tuple(expected)}, -1 for a symbol")
    return problems


def _alias_problems(engine: Any, spec: EngineSpec) -> list[str]:  # noqa: ANN401
    """Return cache outputs that are not updated in place: a separate buffer holds one token."""
    problems = []
    for output in spec.outputs:
        if output.role in _ALIASES:
            wanted = spec.tensor(_ALIASES[output.role]).name
            seen = engine.get_aliased_input_tensor(output.name)
            if seen != wanted:
                problems.append(f"{output.name} is written to {seen}; expected {wanted}, in place")
    return problems


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
    return built[0] == here[0] and built <= here


def _is_gpu_accepted(build: BuildSpec, compute_capability: str) -> bool:
    if not build.hardware_compatible:
        return build.compute_capability == compute_capability
    both = (build.compute_capability, compute_capability)
    return all(_numbers(capability) >= _OLDEST_COMPATIBLE for capability in both)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


class ErrorRecorder(Protocol):
    """A ``trt.IErrorRecorder`` whose records can be taken."""

    def take(self) -> str:
        """Return all records since the last call as one text, and clear them."""
        ...


def error_recorder(library: TensorRtLibrary) -> ErrorRecorder:
    """Create a recorder for TensorRT's objects, which collects every error."""
    trt = library.module

    class Recorder(trt.IErrorRecorder):  # type: ignore[misc, name-defined]
        """A recorder that TensorRT calls from any of its threads."""

        def __init__(self) -> None:
            trt.IErrorRecorder.__init__(self)
            self._records: list[tuple[Any, str]] = []
            self._has_overflowed = False

        def report_error(self, code: Any, description: str) -> bool:  # noqa: ANN401
            """Keep one error; the result False lets TensorRT continue if it can."""
            self._has_overflowed |= len(self._records) >= _MAX_RECORDS
            if not self._has_overflowed:
                self._records.append((code, description))
            return False

        def num_errors(self) -> int:
            """Return the number of errors kept."""
            return len(self._records)

        def get_error_code(self, index: int) -> Any:  # noqa: ANN401  (trt.ErrorCodeTRT)
            """Return the code of error ``index``."""
            return self._records[index][0]

        def get_error_desc(self, index: int) -> str:
            """Return the message of error ``index``."""
            return self._records[index][1]

        def has_overflowed(self) -> bool:
            """Return True if errors were dropped."""
            return self._has_overflowed

        def clear(self) -> None:
            """Forget all errors."""
            self._records.clear()
            self._has_overflowed = False

        def take(self) -> str:
            """Return all errors as one text, and clear them."""
            texts = [f"{code.name}: {description}" for code, description in self._records]
            if self._has_overflowed:
                texts.append("and more")
            self.clear()
            return "; ".join(texts) or "TensorRT gave no reason"

    return Recorder()


class EngineErrors:
    """Turns failed calls of one engine into errors with its name and TensorRT's message."""

    def __init__(self, engine: str, recorder: ErrorRecorder) -> None:
        self._engine = engine
        self._recorder = recorder

    def check(self, succeeded: bool, action: str) -> None:
        """Raise SkipDecError unless TensorRT ``succeeded`` to do ``action``."""
        if not succeeded:
            raise SkipDecError(
                f"engine {self._engine}", f"TensorRT failed to {action}: {self._recorder.take()}"
            )
