"""ONNX Runtime on a device: all engines run on one stream and are bound by address.

``OrtRehearsalBackend`` takes the path of ``OrtCudaBackend`` with the CPU provider on host memory.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from abc import abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import onnxruntime
from typing_extensions import override

from ..errors import BundleError, DeviceError, EnvironmentMismatchError, SkipDecError
from ..host.gpus import survey_gpus
from ..host.installation import install_command
from ..manifest import PAST_OF, EngineSpec, KVBucket, TensorRole, TensorSpec
from ..memory import ITEM_BYTES, DeviceTensor, Tensor
from .choice import choice_graph, choice_spec
from .device import Device, DeviceMemory, misplaced
from .ort import (
    ONNX_BFLOAT16,
    cpu_session_options,
    execution_providers,
    open_session,
    run_bound,
    session_options,
)
from .rehearsal import RehearsalDevice
from .session import Binding, EngineBackend, EngineSession

if TYPE_CHECKING:
    from ..bundle import EngineBundle

_LOGGER = logging.getLogger(__name__)

_CUDA_PROVIDER = "CUDAExecutionProvider"
_FLOATING = frozenset({"float32", "float16", "bfloat16"})  # only CPUs have int8 caches
_HOST_ROLES = frozenset({TensorRole.TOTAL_SEQUENCE_LENGTH})  # a kernel launch argument
_NO_KERNEL = "default CPU EP"  # part of ONNX Runtime's message for an operator without CUDA kernel
_WARNING, _ERROR = 2, 3  # severities of ONNX Runtime's log; its default is _WARNING


class _QuietLog:
    """Keeps warnings out of ONNX Runtime's default log while any thread is inside.

    For each CUDA session it warns that there is no CUDA plugin, although none is needed. The
    severity can't be read, so the last thread to leave restores ONNX Runtime's default.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside = 0  # threads

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        self._enter(1)
        try:
            yield
        finally:
            self._enter(-1)

    def _enter(self, change: int) -> None:
        with self._lock:
            self._inside += change
            onnxruntime.set_default_logger_severity(_ERROR if self._inside else _WARNING)


_quiet_log = _QuietLog()


class OrtDeviceBinding(Binding):
    """An IOBinding to addresses, whose ``run`` enqueues. Host scalars are copied when bound."""

    def __init__(self, session: OrtDeviceSession, tensors: Mapping[TensorRole, Tensor]) -> None:
        self._session = session
        self._tensors = tuple(tensors.values())  # keeps their buffers allocated
        self._io_binding: onnxruntime.IOBinding | None = session.native.io_binding()
        for spec in session.spec.inputs:
            self._bind_input(spec, tensors[spec.role])
        for spec in session.spec.outputs:
            self._io_binding.bind_output(*self._address(spec, tensors[spec.role]))

    @override
    def run(self) -> None:
        assert self._io_binding is not None, "the binding was released"
        self._session.enqueue(self._io_binding)

    def release(self) -> None:
        """Drop the references to tensors; work already enqueued still uses their addresses."""
        self._io_binding = None
        self._tensors = ()

    def _bind_input(self, spec: TensorSpec, tensor: Tensor) -> None:
        assert self._io_binding is not None
        if spec.role in _HOST_ROLES:
            value = onnxruntime.OrtValue.ortvalue_from_numpy(cast(Any, tensor).copy())
            self._io_binding.bind_ortvalue_input(spec.name, value)
        else:
            self._io_binding.bind_input(*self._address(spec, tensor))

    def _address(self, spec: TensorSpec, tensor: Tensor) -> tuple[Any, ...]:
        """Return the arguments of ``bind_input`` and ``bind_output``."""
        memory = cast(DeviceTensor, tensor)
        place = self._session.memory_kind, self._session.device.index
        dtype = memory.dtype
        element_type = ONNX_BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype).type
        return spec.name, *place, element_type, memory.shape, memory.address


class OrtDeviceSession(EngineSession):
    """One engine as an ONNX Runtime session whose tensors are on a device."""

    memory_kind = "cuda"  # ONNX Runtime's name for the device's memory

    def __init__(
        self, spec: EngineSpec, native: onnxruntime.InferenceSession, device: Device
    ) -> None:
        super().__init__(spec)
        self.native = native
        self.device = device
        self._run_options = onnxruntime.RunOptions()
        self._run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def enqueue(self, io_binding: onnxruntime.IOBinding) -> None:
        """Enqueue the session's kernels without waiting."""
        run_bound(self.native, io_binding, self.spec.name, self._run_options)

    def _bind(self, tensors: Mapping[TensorRole, Tensor]) -> Binding:
        return OrtDeviceBinding(self, tensors)

    def _array_problems(self, tensors: Mapping[TensorRole, Tensor]) -> list[str]:
        return [*super()._array_problems(tensors), *misplaced(tensors, _HOST_ROLES)]


class OrtRehearsalBinding(OrtDeviceBinding):
    """A binding whose runs fail where they would fail on CUDA, although the CPU could run them.

    CUDA's attention also reads cache positions that were never written, and a captured run must not
    allocate.
    """

    def __init__(self, session: OrtRehearsalSession, tensors: Mapping[TensorRole, Tensor]) -> None:
        super().__init__(session, tensors)
        self._device = session.device
        self._count_run = partial(session.count_run, tuple(one.shape for one in tensors.values()))
        caches = (cast(DeviceTensor, tensors[role]) for role in PAST_OF.values() if role in tensors)
        self._caches = [cache for cache in caches if cache.dtype in _FLOATING]

    @override
    def run(self) -> None:
        self._count_run()
        for cache in self._caches:
            self._device.require_written(cache.address, cache.nbytes, ITEM_BYTES[cache.dtype])
        super().run()


class OrtRehearsalSession(OrtDeviceSession):
    """One engine on the CPU, run when the rehearsal device synchronises."""

    memory_kind = "cpu"
    device: RehearsalDevice

    def __init__(
        self, spec: EngineSpec, native: onnxruntime.InferenceSession, device: RehearsalDevice
    ) -> None:
        super().__init__(spec, native, device)
        has_pattern = native.get_session_options().enable_mem_pattern
        self._runs_before_capture = 2 if has_pattern else 1  # runs that allocate
        self._runs: Counter[Hashable] = Counter()  # by the shapes of the bound tensors

    def count_run(self, shapes: Hashable) -> None:
        """Count a run. Raises DeviceError if ONNX Runtime would allocate for it in a capture."""
        if not self.device.is_capturing:
            self._runs[shapes] += 1
        elif self._runs[shapes] < self._runs_before_capture:
            raise DeviceError(
                f"engine {self.spec.name}",
                f"has run {self._runs[shapes]} times with shapes that are captured now, for which "
                f"ONNX Runtime allocates in the first {self._runs_before_capture} runs; run it "
                "before, without memory patterns",
            )

    def enqueue(self, io_binding: onnxruntime.IOBinding) -> None:
        """Put a run on the rehearsal's stream; errors are raised when it runs."""
        self.device.enqueue(partial(run_bound, self.native, io_binding, self.spec.name))

    @override
    def _bind(self, tensors: Mapping[TensorRole, Tensor]) -> Binding:
        return OrtRehearsalBinding(self, tensors)


class _OrtDeviceBackend(EngineBackend):
    """Base of the backends that run ONNX Runtime on a device."""

    device: Device

    def __init__(self, device: Device) -> None:
        self.device = device
        self.memory = DeviceMemory(device)

    @override
    def load_choice(self, bundle: EngineBundle, candidates: EngineSpec) -> OrtDeviceSession | None:
        spec = choice_spec(candidates)
        try:
            return self._load(bundle, spec, choice_graph(spec))
        except SkipDecError as error:
            _LOGGER.warning("steps behind tokens drawn by chance begin late: %s", error)
            return None

    @override
    def load(
        self, bundle: EngineBundle, spec: EngineSpec, bucket: KVBucket | None = None
    ) -> OrtDeviceSession:
        return self._load(bundle, spec)

    @abstractmethod
    def _load(
        self, bundle: EngineBundle, spec: EngineSpec, graph: bytes | None = None
    ) -> OrtDeviceSession:
        """Load one engine from its file, or from the serialised ``graph``."""

    @override
    def close(self) -> None:
        self.device.close()


def _require_gpu(index: int) -> None:
    """Raise EnvironmentMismatchError without a GPU, where installation advice would not help."""
    found = survey_gpus()
    if found.is_known and not found.gpus:
        raise EnvironmentMismatchError(
            f"device cuda:{index}",
            f"this machine has no GPU ({found.note}); use device='cpu', or a machine with one",
        )


class OrtCudaBackend(_OrtDeviceBackend):
    """Engines on ONNX Runtime's CUDA execution provider, on one stream.

    Raises EnvironmentMismatchError if ONNX Runtime was built without CUDA or there is no GPU.
    """

    def __init__(self, device_index: int = 0) -> None:
        if _CUDA_PROVIDER not in execution_providers():
            _require_gpu(device_index)
            raise EnvironmentMismatchError(
                f"onnxruntime {onnxruntime.__version__}",
                f"has the providers {', '.join(execution_providers())}; needed: {_CUDA_PROVIDER}; "
                f"run: pip uninstall -y onnxruntime onnxruntime-gpu && {install_command('gpu')}",
            )
        with contextlib.redirect_stdout(sys.stderr):  # it prints missing libraries
            onnxruntime.preload_dlls()
        super().__init__(_open_cuda_device(device_index))
        self._options = _for_captures(session_options(1))
        self._options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")

    @override
    def _load(
        self, bundle: EngineBundle, spec: EngineSpec, graph: bytes | None = None
    ) -> OrtDeviceSession:
        """Load one engine entirely on the GPU.

        Raises EnvironmentMismatchError for an operator without a CUDA kernel or missing CUDA
        libraries, and BundleError for a broken graph.
        """
        if bundle.manifest.kernels is not None:
            raise EnvironmentMismatchError(
                str(bundle.path),
                f"runs on {bundle.manifest.kernels}'s kernels, which are for CPUs; use "
                "device='cpu', or export the model for ONNX Runtime's: skipdec export MODEL "
                "--kernels onnxruntime",
            )
        try:
            with _quiet_log():
                providers = [(_CUDA_PROVIDER, self._settings())]
                native = open_session(bundle, spec, self._options, providers, graph=graph)
        except BundleError as error:
            if _NO_KERNEL not in str(error):
                raise
            precision = bundle.manifest.precision
            raise EnvironmentMismatchError(
                f"engine {spec.name}",
                f"has operators that {_CUDA_PROVIDER} can't run; the bundle computes in "
                f"{precision.dtype}, its weights are quantised as {precision.quantize}, the head's "
                f"as {precision.head_quantize}; attention on CUDA needs float16 and int8 products "
                "are for CPUs: export the model with --dtype float16, and --quantize int4 if it "
                "should be smaller, or use device='cpu'",
            ) from error
        if _CUDA_PROVIDER not in native.get_providers():
            raise EnvironmentMismatchError(
                f"engine {spec.name}",
                f"ONNX Runtime could not load {_CUDA_PROVIDER} and its libraries (cuBLAS, cuDNN); "
                "run: pip install 'onnxruntime-gpu[cuda,cudnn]'",
            )
        return OrtDeviceSession(spec, native, self.device)

    def _settings(self) -> dict[str, str]:
        return {
            "device_id": str(self.device.index),
            "user_compute_stream": str(self.device.stream),
            "arena_extend_strategy": "kSameAsRequested",
            "use_tf32": "0",  # a float32 bundle computes in float32
        }


class OrtRehearsalBackend(_OrtDeviceBackend):
    """ONNX Runtime's CPU provider on the device path, to rehearse it without a GPU."""

    device: RehearsalDevice

    def __init__(self, device_index: int = 0, *, device: RehearsalDevice | None = None) -> None:
        if device_index != 0:
            raise EnvironmentMismatchError(
                "device", f"is number {device_index}; there is one rehearsal device, number 0"
            )
        super().__init__(device if device is not None else RehearsalDevice())

    @override
    def _load(
        self, bundle: EngineBundle, spec: EngineSpec, graph: bytes | None = None
    ) -> OrtRehearsalSession:
        """Load one engine. Raises BundleError, with ONNX Runtime's message, for a broken graph."""
        options = _for_captures(cpu_session_options(1, bundle, spec))
        native = open_session(bundle, spec, options, ["CPUExecutionProvider"], graph=graph)
        return OrtRehearsalSession(spec, native, self.device)


def _for_captures(options: onnxruntime.SessionOptions) -> onnxruntime.SessionOptions:
    """Turn off memory patterns, so that only the first run of given shapes allocates.

    With patterns the second run, which is the one that is captured, would allocate a single block
    for everything that the first run allocated piece by piece.
    """
    options.enable_mem_pattern = False
    return options


def _open_cuda_device(index: int) -> Device:
    from .cuda import CudaDevice  # imported only if needed: requires cuda-bindings

    return CudaDevice(index)
