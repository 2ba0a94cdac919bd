"""The ONNX Runtime backend: per-layer sessions that share one thread pool and one arena.

With a thread pool per session, 24 stitched layers run 12-15 times slower than one graph, because
the pools' spinning threads compete. ``use_shared_thread_pool`` gives the process one pool. Sessions
in which skipdec's kernels compute all matrix products need no pool.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..bundle import WeightsPlace
from ..errors import BundleError, EnvironmentMismatchError, SkipDecError, UsageError
from ..host.installation import require_extra
from ..host.processor import (
    available_cores,
    integer_products_may_saturate,
    quota_cores,
    thread_problems,
)
from ..kernels.formats import foreign_products
from ..kernels.library import require_library
from ..manifest import DType, EngineKind, EngineSpec, KVBucket, TensorRole
from ..memory import HostMemory, Tensor
from .session import Binding, EngineBackend, EngineSession

require_extra("cpu", "the onnxruntime target")

import onnxruntime  # noqa: E402  (after the check that it is installed)
from onnxruntime.capi import onnxruntime_pybind11_state as _native  # noqa: E402

from .weights import FileCopies, copy_weights  # noqa: E402

if TYPE_CHECKING:
    from ..bundle import EngineBundle

# Long enough to bridge the gap between two layers' engines, short enough not to compete.
_SPIN_MICROSECONDS = "50"
_EXACT_INTEGER_PRODUCTS = "session.x64quantprecision"  # u8 x u8, slower on processors with VNNI
ONNX_BFLOAT16 = 16  # numpy has no such type
_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
# The bindings' exceptions for failed statuses and C++ exceptions, e.g. for a graph with an
# impossible size or a name that is not valid text (UnicodeDecodeError, a ValueError).
_LOAD_ERRORS = (
    _native.EPFail,
    _native.EngineError,
    _native.Fail,
    _native.InvalidArgument,
    _native.InvalidGraph,
    _native.InvalidProtobuf,
    _native.ModelLoaded,
    _native.NoModel,
    _native.NoSuchFile,
    _native.NotImplemented,
    _native.RuntimeException,
    IndexError,
    MemoryError,
    OverflowError,
    ValueError,
)
RUN_ERRORS = (RuntimeError, *_LOAD_ERRORS)
# OrtValue.ortvalue_from_numpy would create it at each call, which takes half of the call's time.
_HOST = _native.OrtDevice(_native.OrtDevice.cpu(), _native.OrtDevice.default_memory(), 0)


@dataclass
class _ProcessWide:
    """Process-wide settings made in ONNX Runtime, which can't be queried."""

    threads: int | None = None  # set by use_shared_thread_pool
    has_pool: bool = False  # made for the first session that needs it
    has_arena: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)  # held while the pool is made


_process_wide = _ProcessWide()


def use_shared_thread_pool(threads: int) -> None:
    """Give this process ``threads`` threads for its engines.

    skipdec's kernels use them, and so does ONNX Runtime's pool, which is created when the first
    bundle is opened whose matrix products ONNX Runtime computes.

    For applications: call it once, before opening the first bundle. Once ONNX Runtime's pool
    exists, other sessions of the process need ``SessionOptions.use_per_session_threads = False``.
    Repeating the call with the same number does nothing. Raises UsageError for another number or
    one that is not between 1 and the number of usable processors.
    """
    if _process_wide.threads == threads:
        return
    if _process_wide.threads is not None:
        raise UsageError(
            "shared thread pool",
            f"asked for {threads} threads, this process already shares {_process_wide.threads}; "
            "the pool can't be resized, use one number everywhere",
        )
    for problem in thread_problems(threads):
        raise UsageError("shared thread pool", f"threads {problem}")
    _process_wide.threads = threads


def _share_pool(threads: int) -> None:
    """Create ONNX Runtime's pool for all sessions, unless another thread has created it.

    Raises EnvironmentMismatchError if other code has created one.
    """
    with _process_wide.lock:
        if _process_wide.has_pool:
            return
        try:
            onnxruntime.set_global_thread_pool_sizes(threads, 1)
        except RUN_ERRORS as error:
            raise EnvironmentMismatchError(
                "shared thread pool",
                f"ONNX Runtime refused it ({error}); call skipdec.use_shared_thread_pool in place "
                "of onnxruntime.set_global_thread_pool_sizes",
            ) from error
        _process_wide.has_pool = True
        _process_wide.has_arena = False  # the pool may come with a new environment


def execution_providers() -> list[str]:
    """Return the execution providers that the installed ONNX Runtime was built with."""
    return list(onnxruntime.get_available_providers())


class OrtBinding(Binding):
    """An IOBinding whose OrtValues share memory with the caller's arrays.

    It uses the native objects behind ONNX Runtime's Python classes. The classes take 2 µs more per
    run and 5 µs more per binding, at every layer of every step, which slows down small models.
    """

    def __init__(self, session: OrtSession, tensors: Mapping[TensorRole, Tensor]) -> None:
        self._name = session.spec.name
        self._run = session.native._sess.run_with_iobinding
        self._io_binding = _native.SessionIOBinding(session.native._sess)
        self._arrays = tuple(tensors.values())  # whose memory the OrtValues use
        for tensor in session.spec.inputs:
            value = _ort_value(tensors[tensor.role], tensor.dtype)
            self._io_binding.bind_ortvalue_input(tensor.name, value)
        for tensor in session.spec.outputs:
            value = _ort_value(tensors[tensor.role], tensor.dtype)
            self._io_binding.bind_ortvalue_output(tensor.name, value)

    def run(self) -> None:
        """Run the session. Raises SkipDecError, with ONNX Runtime's message, if a kernel fails."""
        try:
            self._run(self._io_binding, None)
        except RUN_ERRORS as error:
            raise _run_error(self._name, error) from error

    def release(self) -> None:
        """Clear the binding, so that the arrays can be freed or reused."""
        self._io_binding.clear_binding_inputs()
        self._io_binding.clear_binding_outputs()
        self._arrays = ()


def _ort_value(array: Any, dtype: DType) -> Any:  # noqa: ANN401  (untyped there)
    """Return a native OrtValue on the memory of ``array``, which must live longer."""
    if dtype == "bfloat16":
        return _native.OrtValue.ortvalue_from_numpy_with_onnx_type(array, ONNX_BFLOAT16)
    return _native.OrtValue.ortvalue_from_numpy(array, _HOST)


class OrtSession(EngineSession):
    """One engine as an ONNX Runtime session, which uses ``weights``, if any, instead of files."""

    def __init__(
        self,
        spec: EngineSpec,
        native: onnxruntime.InferenceSession,
        weights: Sequence[onnxruntime.OrtValue] = (),
    ) -> None:
        super().__init__(spec)
        self.native = native
        self._weights = weights  # kept alive as long as the session

    def _bind(self, tensors: Mapping[TensorRole, Tensor]) -> Binding:
        return OrtBinding(self, tensors)


class OrtBackend(EngineBackend):
    """Engines on ONNX Runtime's CPU execution provider.

    ``threads`` is the number of threads of skipdec's kernels. If ONNX Runtime computes the products
    and no pool is shared, it is the size of each session's pool. With None the kernels use all
    cores, and ONNX Runtime chooses within this process's CPU quota. ``weights`` are mapped, or
    copied except for the embedding's, of which each token reads only one row. Raises UsageError for
    more threads than processors, or a number other than the shared pool's.
    """

    def __init__(self, threads: int | None = None, weights: WeightsPlace = "mapped") -> None:
        for problem in thread_problems(threads):
            raise UsageError("threads", problem)
        if _process_wide.threads is not None and threads not in (None, _process_wide.threads):
            raise UsageError(
                "threads",
                f"is {threads}, but this process shares a pool of {_process_wide.threads}; "
                "leave it out or use the same number",
            )
        self.memory = HostMemory()
        self._threads = threads
        self._weights = weights
        self._files: FileCopies = {}

    def load(
        self, bundle: EngineBundle, spec: EngineSpec, bucket: KVBucket | None = None
    ) -> OrtSession:
        """Load one engine.

        Raises BundleError, with ONNX Runtime's message, if its graph can't be loaded;
        EnvironmentMismatchError if required kernels are missing; and UsageError for weights that
        would be copied twice.
        """
        options = cpu_session_options(self._threads, bundle, spec)
        if self._weights == "copied" and bundle.manifest.kernels is None:
            raise UsageError(
                "weights",
                "is 'copied', but the bundle runs on ONNX Runtime's operators, which copy weights "
                "into their own layout; leave it out",
            )
        is_copied = self.hashes_weights(spec)
        weights = copy_weights(bundle, spec, options, self._files) if is_copied else ()
        session = open_session(bundle, spec, options, ["CPUExecutionProvider"])
        return OrtSession(spec, session, weights)

    def hashes_weights(self, spec: EngineSpec) -> bool:
        """Return True for weights that are copied, and so hashed while they are read."""
        return self._weights == "copied" and spec.kind is not EngineKind.EMBED

    def close(self) -> None:
        """Forget shared copies of weights; sessions free their own memory."""
        self._files.clear()


def open_session(
    bundle: EngineBundle,
    spec: EngineSpec,
    options: onnxruntime.SessionOptions,
    providers: list[Any],
    *,
    graph: bytes | None = None,
) -> onnxruntime.InferenceSession:
    """Load an engine's graph, or the serialised ``graph``, on exactly these execution providers.

    Raises BundleError, with ONNX Runtime's message, if the graph can't be loaded.
    """
    path, subject = bundle.locate(spec.graph), f"engine {spec.name} ({bundle.file(spec.graph)})"
    if graph is not None and spec.weights:
        options.add_session_config_entry(_WEIGHTS_FOLDER, str(path.parent))
    try:
        session = _session(str(path) if graph is None else graph, options, providers)
        problems = list(signature_problems(session, spec)) if graph is None else []
    except _LOAD_ERRORS as error:
        words = bundle.named(error)
        raise BundleError(subject, f"ONNX Runtime can't load it: {words}") from error
    except RuntimeError as error:  # from the bindings if a pool is already shared
        raise EnvironmentMismatchError(
            f"engine {spec.name}",
            f"ONNX Runtime refused the session ({error}); if other code has called "
            "onnxruntime.set_global_thread_pool_sizes, leave that call out",
        ) from error
    if problems:
        raise BundleError(subject, *problems, "export the model again")
    return session


def _session(
    graph: str | bytes, options: onnxruntime.SessionOptions, providers: list[Any]
) -> onnxruntime.InferenceSession:
    """Return a session; retry if another thread created the pool after ``options`` were made."""
    try:
        return onnxruntime.InferenceSession(graph, options, providers=providers, enable_fallback=0)
    except RuntimeError:
        with _process_wide.lock:
            is_outdated = options.use_per_session_threads and _process_wide.has_pool
        if not is_outdated:
            raise
        options.use_per_session_threads = False
        options.intra_op_num_threads = options.inter_op_num_threads = 0  # else it warns
        return onnxruntime.InferenceSession(graph, options, providers=providers, enable_fallback=0)


def run_bound(
    session: onnxruntime.InferenceSession,
    io_binding: onnxruntime.IOBinding,
    engine: str,
    options: onnxruntime.RunOptions | None = None,
) -> None:
    """Run a session on bound memory. Raises SkipDecError with ONNX Runtime's message."""
    try:
        session.run_with_iobinding(io_binding, options)
    except RUN_ERRORS as error:
        raise _run_error(engine, error) from error


def _run_error(engine: str, error: Exception) -> SkipDecError:
    return SkipDecError(f"engine {engine}", f"ONNX Runtime failed to run it: {error}")


def _share_arena() -> None:
    """Let all sessions allocate activations from one arena.

    With an arena per session, 12 layers of opt-125m use 1.0 GB more after a prompt of 8 x 512.
    """
    if _process_wide.has_arena:
        return
    memory = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    defaults = onnxruntime.OrtArenaCfg(0, -1, -1, -1)
    onnxruntime.create_and_register_allocator(memory, defaults)
    _process_wide.has_arena = True


def cpu_session_options(
    threads: int | None, bundle: EngineBundle, spec: EngineSpec
) -> onnxruntime.SessionOptions:
    """Return options for a CPU session of an engine of ``bundle`` that uses this process's arena.

    Raises EnvironmentMismatchError if its graphs need kernels that are missing.
    """
    manifest = bundle.manifest
    # Two spinning pools would compete, so only one of them gets threads.
    has_kernels = manifest.kernels is not None and spec not in manifest.canonical
    is_own = has_kernels and not foreign_products(manifest.precision)
    options = session_options(1 if is_own else threads, needs_pool=not is_own)
    _share_arena()
    options.add_session_config_entry("session.use_env_allocators", "1")
    if integer_products_may_saturate():
        options.add_session_config_entry(_EXACT_INTEGER_PRODUCTS, "1")
    if manifest.kernels is not None:
        kernel_threads = _process_wide.threads or threads or available_cores()
        library = require_library(str(bundle.path))
        library.register(options, kernel_threads if is_own else None)
    return options


def session_options(threads: int | None, *, needs_pool: bool = False) -> onnxruntime.SessionOptions:
    """Return options for any session: ``threads`` of its own, unless the process shares a pool.

    If it ``needs_pool``, the pool that `use_shared_thread_pool` requested is created.
    """
    options = onnxruntime.SessionOptions()
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3
    shared = _process_wide.threads
    if needs_pool and shared is not None and not _process_wide.has_pool:
        _share_pool(shared)
    if _process_wide.has_pool:
        options.use_per_session_threads = False
        return options
    if wanted := threads or quota_cores():  # ONNX Runtime ignores quotas
        options.intra_op_num_threads = wanted
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_MICROSECONDS)
    return options


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
            wanted = "tensor(float)" if tensor.dtype == "float32" else f"tensor({tensor.dtype})"
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
