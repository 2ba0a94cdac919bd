"""The TensorRT backend: one plan per engine, all on one stream, in preallocated memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

from ..backends.device import Device, DeviceMemory, misplaced
from ..backends.session import Binding, EngineBackend, EngineSession
from ..errors import BundleError, CapacityError, SkipDecError, UsageError
from ..manifest import PAST_OF, EngineSpec, KVBucket, TensorRole, TensorSpec
from ..memory import DeviceBuffer, DeviceTensor, Tensor
from .checks import check_engine, check_environment
from .library import TensorRtLibrary, TensorRtTarget, error_recorder, load_library, logger

if TYPE_CHECKING:
    from ..bundle import EngineBundle

_DECODE_PROFILE = 0


class ScratchBuffer:
    """Device memory for activations, sized for the most demanding engine loaded so far.

    Runs never overlap. When it grows, existing bindings keep the old memory, so captured graphs
    stay valid.
    """

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self._buffer: DeviceBuffer | None = None

    def reserve(self, nbytes: int) -> None:
        """Make room for ``nbytes`` of an engine. Raises CapacityError if memory is short."""
        held = 0 if self._buffer is None else self._buffer.nbytes
        if self._buffer is not None and held >= nbytes:
            return
        self._buffer = None  # freed now unless bindings hold it
        try:
            self._buffer = self._memory.allocate(nbytes)
        except CapacityError:
            self._buffer = self._memory.allocate(held)  # for the engines loaded so far
            raise

    def free(self) -> None:
        """Drop the memory; nothing may be bound afterwards."""
        self._buffer = None

    @property
    def buffer(self) -> DeviceBuffer:
        """Return the memory to bind, aligned to 256 bytes; a reference keeps it allocated."""
        assert self._buffer is not None, "no engine is loaded"
        return self._buffer


@dataclass(frozen=True)
class Profile:
    """The range of shapes that one optimisation profile of an engine accepts."""

    index: int
    bounds: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]  # input -> smallest, largest

    def problems(self, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
        """Return one text per input whose shape is out of range."""
        return [
            f"{name} is {shape}; profile {self.index} takes {smallest} to {largest}"
            for name, shape in shapes.items()
            for smallest, largest in [self.bounds[name]]
            if len(shape) != len(smallest)
            or not all(
                low <= size <= high
                for low, size, high in zip(smallest, shape, largest, strict=True)
            )
        ]


class TensorRtBinding(Binding):
    """An execution context with fixed profile, shapes, addresses and scratch memory.

    Graphs captured from its runs must be destroyed before it is released.
    """

    def __init__(
        self, session: TensorRtSession, profile: Profile, tensors: Mapping[TensorRole, Tensor]
    ) -> None:
        self._session = session
        self._profile = profile
        self._tensors = tuple(tensors.values())  # keeps their buffers allocated
        self._scratch: DeviceBuffer | None = session.scratch.buffer
        self._context = session.take_context(profile)
        context, check = self._context, session.check
        for spec in session.spec.inputs:
            shape = tensors[spec.role].shape
            check(context.set_input_shape(spec.name, shape), f"set {spec.name} to {shape}")
        for spec in (*session.spec.inputs, *session.spec.outputs):
            address = cast(DeviceTensor, tensors[spec.role]).address
            check(context.set_tensor_address(spec.name, address), f"bind {spec.name}")
        context.set_device_memory(self._scratch.address, self._scratch.nbytes)
        unknown = context.infer_shapes()
        check(not unknown, f"infer shapes from {', '.join(unknown)}")

    def output_problems(self, tensors: Mapping[TensorRole, Tensor]) -> list[str]:
        """Return one text per output whose shape differs from what TensorRT infers."""
        return [
            f"{spec.role} is {tensors[spec.role].shape}; the inputs imply {shape}"
            for spec in self._session.spec.outputs
            if (shape := tuple(self._context.get_tensor_shape(spec.name)))
            != tensors[spec.role].shape
        ]

    def run(self) -> None:
        """Enqueue the engine. Raises SkipDecError, with TensorRT's message, if that fails."""
        assert self._context is not None, "the binding was released"
        stream = self._session.device.stream
        self._session.check(self._context.execute_async_v3(stream), "enqueue it")

    def release(self) -> None:
        """Return the context and drop the tensors; enqueued work is not affected."""
        if self._context is not None:
            self._session.give_back_context(self._profile, self._context)
        self._context = self._scratch = None
        self._tensors = ()


class TensorRtSession(EngineSession):
    """One deserialised plan with its profiles and idle execution contexts."""

    def __init__(self, spec: EngineSpec, engine: Any, backend: TensorRtBackend) -> None:  # noqa: ANN401
        super().__init__(spec)
        self.device = backend.device
        self.scratch = backend.scratch
        self._engine = engine
        self._backend = backend
        self._settings: dict[int, Any] = {}  # of contexts, by profile
        self._idle_contexts: dict[int, list[Any]] = defaultdict(list)  # by profile
        self.profiles = tuple(
            _read_profile(engine, index, spec.inputs)
            for index in range(engine.num_optimization_profiles)
        )

    def check(self, succeeded: bool, action: str) -> None:
        """Raise SkipDecError, with TensorRT's message, unless it ``succeeded`` in ``action``."""
        if not succeeded:
            reason = self._backend.recorder.take()
            raise SkipDecError(f"engine {self.spec.name}", f"TensorRT failed to {action}: {reason}")

    def take_context(self, profile: Profile) -> Any:  # noqa: ANN401  (trt.IExecutionContext)
        """Return an execution context set to ``profile``, to be given back by the caller."""
        index = profile.index
        if self._idle_contexts[index]:
            return self._idle_contexts[index].pop()
        if index not in self._settings:
            self._settings[index] = self._backend.context_settings(self._engine, index)
        context = self._engine.create_execution_context(self._settings[index])
        self.check(context is not None, "make an execution context")
        switched = context.set_optimization_profile_async(index, self.device.stream)
        self.check(switched, f"choose profile {index}")
        return context

    def give_back_context(self, profile: Profile, context: Any) -> None:  # noqa: ANN401
        """Keep a context from ``take_context`` for later bindings."""
        self._idle_contexts[profile.index].append(context)

    def _bind(self, tensors: Mapping[TensorRole, Tensor]) -> Binding:
        profile = self._choose_profile(tensors)
        binding = TensorRtBinding(self, profile, tensors)
        if problems := binding.output_problems(tensors):
            binding.release()
            raise UsageError(f"engine {self.spec.name}", *problems)
        return binding

    def _choose_profile(self, tensors: Mapping[TensorRole, Tensor]) -> Profile:
        """Return the first profile that accepts the inputs: decode (S = 1) comes before prefill."""
        shapes = {spec.name: tensors[spec.role].shape for spec in self.spec.inputs}
        problems = []
        for profile in self.profiles:
            found = profile.problems(shapes)
            if not found:
                return profile
            problems += found
        raise UsageError(
            f"engine {self.spec.name}",
            *problems,
            "use fewer rows or shorter prompts, or build with a larger max_batch_size, "
            "max_prompt_len or kv_buckets",
        )

    def _array_problems(self, tensors: Mapping[TensorRole, Tensor]) -> list[str]:
        problems = [*super()._array_problems(tensors), *misplaced(tensors)]
        if problems:
            return problems
        return [
            f"{present} is not where {past} is; bind one tensor to both"
            for present, past in PAST_OF.items()
            if past in tensors
            and present in tensors
            and cast(DeviceTensor, tensors[past]).address
            != cast(DeviceTensor, tensors[present]).address
        ]


class TensorRtBackend(EngineBackend):
    """Plans of the full TensorRT on one GPU.

    ``device`` and ``library`` replace the GPU ``device_index`` and the installed library; a given
    device is not closed here. Raises EnvironmentMismatchError if library or GPU is missing.
    """

    target: ClassVar[TensorRtTarget] = "tensorrt"
    device: Device

    def __init__(
        self,
        device_index: int = 0,
        *,
        device: Device | None = None,
        library: TensorRtLibrary | None = None,
    ) -> None:
        self.library = library or load_library(self.target)
        self._owns_device = device is None
        self.device = _cuda_device(device_index) if device is None else device
        self.memory = DeviceMemory(self.device)
        self.scratch = ScratchBuffer(self.memory)
        self.recorder = error_recorder(self.library)
        self._runtime = self.library.module.Runtime(logger(self.library))
        self._runtime.error_recorder = self.recorder

    def load(
        self, bundle: EngineBundle, spec: EngineSpec, bucket: KVBucket | None = None
    ) -> TensorRtSession:
        """Deserialise one plan and reserve its scratch memory.

        Raises EnvironmentMismatchError for another TensorRT or GPU, BundleError if the plan is
        broken or differs from the manifest, and CapacityError if memory is short.
        """
        check_environment(bundle, self.library, self.device.compute_capability)
        build = bundle.manifest.build
        assert build is not None
        # Version-compatible plans contain host code of their own version's runtime.
        self._runtime.engine_host_code_allowed = build.version_compatible
        plan = spec.graph if bucket is None else bucket.graph
        path = bundle.file(plan)
        engine = self._runtime.deserialize_cuda_engine(bundle.read(plan))
        if engine is None:
            raise BundleError(
                f"engine {spec.name} ({path})", f"TensorRT can't load it: {self.recorder.take()}"
            )
        first = spec.buckets[0] if spec.buckets else None
        check_engine(engine, spec, bucket or first, self.library)
        self.scratch.reserve(engine.device_memory_size_v2)
        return TensorRtSession(spec, engine, self)

    def context_settings(self, engine: Any, profile: int) -> Any:  # noqa: ANN401
        """Return the argument of ``create_execution_context`` of ``engine`` for ``profile``."""
        return self.library.module.ExecutionContextAllocationStrategy.USER_MANAGED

    def close(self) -> None:
        """Wait for the device, and close it if it was created here."""
        self.scratch.free()
        self.device.synchronize()
        if self._owns_device:
            self.device.close()


class TensorRtRtxBackend(TensorRtBackend):
    """Plans of TensorRT-RTX, which compiles kernels for this GPU when a plan first runs."""

    target: ClassVar[TensorRtTarget] = "tensorrt-rtx"

    def context_settings(self, engine: Any, profile: int) -> Any:  # noqa: ANN401
        """Compile decode kernels, which are captured, eagerly and prompt kernels lazily."""
        trt = self.library.module
        settings = engine.create_runtime_config()
        strategy = trt.ExecutionContextAllocationStrategy.USER_MANAGED
        settings.set_execution_context_allocation_strategy(strategy)
        specialization = trt.DynamicShapesKernelSpecializationStrategy
        settings.dynamic_shapes_kernel_specialization_strategy = (
            specialization.EAGER if profile == _DECODE_PROFILE else specialization.LAZY
        )
        return settings


def _cuda_device(index: int) -> Device:
    from ..backends.cuda import CudaDevice  # imported only if needed: requires cuda-bindings

    return CudaDevice(index)


def _read_profile(engine: Any, index: int, inputs: tuple[TensorSpec, ...]) -> Profile:  # noqa: ANN401
    bounds = {}
    for tensor in inputs:
        smallest, _, largest = engine.get_tensor_profile_shape(tensor.name, index)
        bounds[tensor.name] = tuple(smallest), tuple(largest)
    return Profile(index, bounds)
