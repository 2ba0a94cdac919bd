"""Fake TensorRT on a HostDevice, with plans that name ONNX graphs for ONNX Runtime.

The fake has only names of the real library, has the same refusals, and does the work when the
device executes it. ``fake_plans.py`` makes bundles of such plans.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

import numpy as np
import onnxruntime
from host_device import HostDevice
from numpy.typing import NDArray

from skipdec.engines.trt.library import TensorRtLibrary, TensorRtTarget

VERSION = "10.16.1.11"
_SCRATCH_JUNK = 0x5A

DataType = Enum("DataType", "FLOAT HALF BF16 INT64 INT32 UINT8 INT8 BOOL")
TensorIOMode = Enum("TensorIOMode", "NONE INPUT OUTPUT")
Strategy = Enum("ExecutionContextAllocationStrategy", "STATIC ON_PROFILE_CHANGE USER_MANAGED")
ErrorCode = Enum("ErrorCodeTRT", "SUCCESS INTERNAL_ERROR INVALID_ARGUMENT INVALID_STATE")
Specialization = Enum("DynamicShapesKernelSpecializationStrategy", "LAZY EAGER NONE")
Severity = Enum("Severity", "INTERNAL_ERROR ERROR WARNING INFO VERBOSE")

_DATA_TYPES = {
    "float32": DataType.FLOAT,
    "float16": DataType.HALF,
    "int64": DataType.INT64,
    "int32": DataType.INT32,
    "bool": DataType.BOOL,
}
Shape = tuple[int, ...]


class ILogger:
    Severity = Severity


class IErrorRecorder:
    pass


@dataclass(frozen=True)
class Execution:
    """One call of ``execute_async_v3``."""

    engine: str
    profile: int
    shapes: Mapping[str, Shape]
    addresses: Mapping[str, int]
    scratch: tuple[int, int]  # address, bytes


@dataclass(eq=False)
class FakeTensorRt:
    """Replaces the module.

    ``executions``: all enqueued work, in order. ``settings``: the arguments of each context.
    ``refusal``: message with which executions fail from now on.
    """

    device: HostDevice
    executions: list[Execution] = field(default_factory=list)
    settings: list[Any] = field(default_factory=list)
    refusal: str | None = None
    sessions: dict[str, onnxruntime.InferenceSession] = field(default_factory=dict)

    DataType = DataType
    TensorIOMode = TensorIOMode
    ExecutionContextAllocationStrategy = Strategy
    ErrorCodeTRT = ErrorCode
    DynamicShapesKernelSpecializationStrategy = Specialization
    ILogger = ILogger
    IErrorRecorder = IErrorRecorder

    @property
    def Runtime(self) -> Callable[[ILogger], _Runtime]:  # noqa: N802
        return partial(_Runtime, self)

    def library(
        self, version: str = VERSION, target: TensorRtTarget = "tensorrt"
    ) -> TensorRtLibrary:
        """Return the stand-in for ``load_library``'s result."""
        return TensorRtLibrary(target, self, version)  # type: ignore[arg-type]

    def session(self, graph: str) -> onnxruntime.InferenceSession:
        if graph not in self.sessions:
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            options.log_severity_level = 3  # it would warn of copied caches at each step
            providers = ["CPUExecutionProvider"]
            self.sessions[graph] = onnxruntime.InferenceSession(graph, options, providers)
        return self.sessions[graph]


class _Runtime:
    def __init__(self, trt: FakeTensorRt, logger: ILogger) -> None:
        assert isinstance(logger, ILogger)
        self.trt = trt
        self.error_recorder: Any = None
        self.engine_host_code_allowed = False

    def deserialize_cuda_engine(self, plan: bytes) -> _Engine | None:
        try:
            return _Engine(self.trt, json.loads(plan), self.error_recorder)
        except ValueError:
            self.error_recorder.report_error(ErrorCode.INTERNAL_ERROR, "the plan has no header")
            return None


class _RuntimeConfig:
    def __init__(self) -> None:
        self.strategy = Strategy.STATIC
        self.dynamic_shapes_kernel_specialization_strategy = Specialization.LAZY

    def set_execution_context_allocation_strategy(self, strategy: Strategy) -> None:
        self.strategy = strategy


class _Engine:
    def __init__(self, trt: FakeTensorRt, plan: dict[str, Any], recorder: Any) -> None:  # noqa: ANN401
        self.trt = trt
        self.plan = plan
        self.recorder = recorder
        self.inputs: dict[str, list[Any]] = {t["name"]: t["shape"] for t in plan["inputs"]}
        self.outputs: dict[str, list[Any]] = {t["name"]: t["shape"] for t in plan["outputs"]}
        self.shapes = self.inputs | self.outputs
        self.dtypes = {t["name"]: t["dtype"] for t in (*plan["inputs"], *plan["outputs"])}
        self.num_io_tensors = len(self.shapes)
        self.num_optimization_profiles = len(plan["profiles"])
        self.device_memory_size_v2 = plan["device_memory"]

    def get_tensor_name(self, index: int) -> str:
        return list(self.shapes)[index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.INPUT if name in self.inputs else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> DataType:
        return _DATA_TYPES[self.dtypes[name]]

    def get_tensor_shape(self, name: str) -> list[int]:
        return [-1 if isinstance(size, str) else size for size in self.shapes[name]]

    def get_aliased_input_tensor(self, name: str) -> str | None:
        alias: str | None = self.plan["aliases"].get(name)
        return alias

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[Shape]:
        ranges = self.plan["profiles"][profile_index]
        return [
            tuple(
                ranges[size][end] if isinstance(size, str) else size for size in self.inputs[name]
            )
            for end in (0, 1, 1)
        ]

    def create_runtime_config(self) -> _RuntimeConfig:
        return _RuntimeConfig()

    def create_execution_context(self, how: Strategy | _RuntimeConfig) -> _Context:
        strategy = how.strategy if isinstance(how, _RuntimeConfig) else how
        assert strategy is Strategy.USER_MANAGED, "contexts would not share their scratch memory"
        self.trt.settings.append(how)
        return _Context(self)


class _Context:
    def __init__(self, engine: _Engine) -> None:
        self.engine = engine
        self.active_optimization_profile = 0
        self.shapes: dict[str, Shape] = {}
        self.addresses: dict[str, int] = {}
        self.scratch = (0, 0)
        self.changes = 0  # changes of state that a captured run depends on

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        self.changes += 1
        self.shapes.clear()  # like the real library
        self.active_optimization_profile = profile_index
        known = profile_index < self.engine.num_optimization_profiles
        return known and stream_handle == self.engine.trt.device.stream

    def set_input_shape(self, name: str, shape: Shape) -> bool:
        self.changes += 1
        profile = self.active_optimization_profile
        low, _, high = self.engine.get_tensor_profile_shape(name, profile)
        fits = len(shape) == len(low) and all(
            a <= b <= c for a, b, c in zip(low, shape, high, strict=True)
        )
        if not fits:
            return self._fail(f"{name} {shape} is outside of profile {profile}")
        self.shapes[name] = tuple(shape)
        return True

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self.changes += 1
        self.addresses[name] = memory
        return name in self.engine.shapes

    def set_device_memory(self, memory: int, size: int) -> None:
        self.changes += 1
        assert memory % 256 == 0
        self.scratch = (memory, size)

    def infer_shapes(self) -> list[str]:
        return [name for name in self.engine.inputs if name not in self.shapes]

    def get_tensor_shape(self, name: str) -> Shape:
        sizes: dict[str, int] = {}
        for other, shape in self.shapes.items():
            sizes |= dict(zip(map(str, self.engine.shapes[other]), shape, strict=True))
        return tuple(sizes.get(str(size), size) for size in self.engine.shapes[name])

    def execute_async_v3(self, stream_handle: int) -> bool:
        engine, device = self.engine, self.engine.trt.device
        if engine.trt.refusal is not None:
            return self._fail(engine.trt.refusal)
        for name in engine.shapes:
            if name not in self.addresses:
                return self._fail(f"no address was set for {name}")
        for output, aliased in engine.plan["aliases"].items():
            if self.addresses[output] != self.addresses[aliased]:
                return self._fail(f"{output} must have the address of {aliased}")
        if self.infer_shapes():
            return self._fail(f"shapes of {self.infer_shapes()} are not set")
        if self.scratch[1] < engine.device_memory_size_v2:
            return self._fail(f"{self.scratch[1]} bytes of scratch memory are too few")
        if stream_handle != device.stream:
            return self._fail("the stream is not the device's")
        name, profile = engine.plan["name"], self.active_optimization_profile
        shapes = {tensor: self.get_tensor_shape(tensor) for tensor in engine.shapes}
        execution = Execution(name, profile, shapes, dict(self.addresses), self.scratch)
        engine.trt.executions.append(execution)
        captured_at = self.changes if device.is_capturing else None
        device.enqueue(partial(self._compute, execution, captured_at))
        return True

    def _compute(self, execution: Execution, captured_at: int | None) -> None:
        assert captured_at in (None, self.changes), "the graph outlived the binding it captured"
        engine, device = self.engine, self.engine.trt.device
        address, size = execution.scratch
        device.bytes_at(address, size)[: engine.device_memory_size_v2] = _SCRATCH_JUNK
        memory = {name: self._view(execution, name) for name in engine.shapes}
        session = engine.trt.session(engine.plan["graph"])
        results = session.run(list(engine.outputs), {name: memory[name] for name in engine.inputs})
        for name, result in zip(engine.outputs, results, strict=True):
            memory[name][...] = result

    def _view(self, execution: Execution, name: str) -> NDArray[Any]:
        dtype = np.dtype(self.engine.dtypes[name])
        shape = execution.shapes[name]
        nbytes = int(np.prod(shape)) * dtype.itemsize
        flat = self.engine.trt.device.bytes_at(execution.addresses[name], nbytes)
        return flat.view(dtype).reshape(shape)

    def _fail(self, description: str) -> bool:
        self.engine.recorder.report_error(ErrorCode.INVALID_ARGUMENT, description)
        return False
