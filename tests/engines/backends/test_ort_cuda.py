"""Test ONNX Runtime on a device: refusals without CUDA, and rehearsals of the device path."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from backend_tensors import download, overwrite, upload_all
from fixture_types import Exported
from host_device import HostDevice
from numpy.typing import NDArray

from skipdec.engines.backends import ort_cuda
from skipdec.engines.backends.ort_cuda import OrtCudaBackend, OrtRehearsalBackend
from skipdec.engines.backends.rehearsal import UNWRITTEN
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.errors import (
    BundleError,
    DeviceError,
    EnvironmentMismatchError,
    SkipDecError,
)
from skipdec.engines.host.gpus import Gpu, GpuSurvey
from skipdec.engines.manifest import EngineSpec, TensorRole
from skipdec.engines.memory import DeviceTensor

Array = NDArray[Any]
CAPACITY = 9
WARNING, ERROR = 2, 3  # severities of ONNX Runtime


@pytest.fixture
def backend() -> OrtRehearsalBackend:
    return OrtRehearsalBackend(device=HostDevice())


def layer_arrays(bundle: EngineBundle, past: list[int], total: int) -> dict[TensorRole, Array]:
    """Return inputs of one token per row after ``past`` ones; unused cache positions are NaN."""
    layer = bundle.manifest.layers[0]
    sizes = {"B": len(past), "S": 1, "T": CAPACITY}
    random = np.random.default_rng(0)
    arrays: dict[TensorRole, Array] = {}
    for tensor in (*layer.inputs, *layer.outputs):
        shape = [sizes[size] if isinstance(size, str) else size for size in tensor.shape]
        arrays[tensor.role] = random.standard_normal(shape).astype(tensor.dtype)
    for role in (TensorRole.PAST_KEY, TensorRole.PAST_VALUE):
        for row, length in enumerate(past):
            arrays[role][row, :, length:] = np.nan
    return arrays | {
        TensorRole.PRESENT_KEY: arrays[TensorRole.PAST_KEY],
        TensorRole.PRESENT_VALUE: arrays[TensorRole.PAST_VALUE],
        TensorRole.SEQLENS_K: np.array(past, np.int32),
        TensorRole.TOTAL_SEQUENCE_LENGTH: np.array(total, np.int32),
    }


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("past", [[5], [3, 5, 1], [0, 8]])
def test_total_sequence_length_may_be_the_capacity(
    exported: Exported, backend: OrtRehearsalBackend, dtype: str, past: list[int]
) -> None:
    """A captured step keeps ``total_sequence_length``, so it need not be exact."""
    bundle = EngineBundle.open(exported("pre_norm", dtype=dtype))
    session = backend.load(bundle, bundle.manifest.layers[0])
    results = []
    for total in (max(past) + 1, CAPACITY):
        tensors = upload_all(backend, layer_arrays(bundle, past, total))
        session.bind(tensors).run()
        roles = (TensorRole.HIDDEN_STATES_OUT, TensorRole.PRESENT_KEY, TensorRole.PRESENT_VALUE)
        results.append([download(backend, tensors[role]) for role in roles])
    exact, constant = results
    assert not np.isnan(exact[0]).any()
    for wanted, seen in zip(exact, constant, strict=True):
        np.testing.assert_array_equal(seen, wanted)


def test_a_host_scalar_keeps_the_value_it_had_when_bound(
    exported: Exported, backend: OrtRehearsalBackend
) -> None:
    bundle = EngineBundle.open(exported("pre_norm"))
    arrays = layer_arrays(bundle, [5], CAPACITY)
    tensors = upload_all(backend, arrays)
    binding = backend.load(bundle, bundle.manifest.layers[0]).bind(tensors)
    arrays[TensorRole.TOTAL_SEQUENCE_LENGTH][...] = CAPACITY + 1  # would be refused when bound
    binding.run()
    assert not np.isnan(download(backend, tensors[TensorRole.HIDDEN_STATES_OUT])).any()


def test_kernel_errors_appear_when_the_device_executes(
    exported: Exported, backend: OrtRehearsalBackend
) -> None:
    bundle = EngineBundle.open(exported("pre_norm"))
    tensors = upload_all(backend, layer_arrays(bundle, [5], CAPACITY))
    binding = backend.load(bundle, bundle.manifest.layers[0]).bind(tensors)
    overwrite(backend, tensors[TensorRole.SEQLENS_K], np.array([CAPACITY + 1], np.int32))
    binding.run()
    with pytest.raises(SkipDecError, match="layer_000"):
        backend.device.synchronize()


@pytest.mark.parametrize(
    ("survey", "advice"),
    [
        (GpuSurvey((Gpu(0, "NVIDIA H200", "9.0", 2**37),)), r"needed: CUDA.*pip install .*\[gpu\]"),
        (GpuSurvey(note="not looked for", is_known=False), r"needed: CUDA.*pip install .*\[gpu\]"),
        (GpuSurvey(note="none at all"), r"no GPU \(none at all\); use device='cpu'"),
    ],
)
def test_an_onnxruntime_without_cuda_is_refused_with_advice(
    monkeypatch: pytest.MonkeyPatch, survey: GpuSurvey, advice: str
) -> None:
    monkeypatch.setattr(ort_cuda, "execution_providers", lambda: ["CPUExecutionProvider"])
    monkeypatch.setattr(ort_cuda, "survey_gpus", lambda: survey)
    with pytest.raises(EnvironmentMismatchError, match=advice) as caught:
        OrtCudaBackend()
    assert ("pip" in str(caught.value)) == ("pip" in advice)


class FakeSession:
    """A session on one execution provider."""

    def __init__(self, provider: str) -> None:
        self._provider = provider

    def get_providers(self) -> list[str]:
        return [self._provider]


@pytest.fixture
def cuda_backend(monkeypatch: pytest.MonkeyPatch) -> OrtCudaBackend:
    """Return a backend on a host device whose sessions come from the test's ``open_session``."""
    monkeypatch.setattr(ort_cuda, "execution_providers", lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr(ort_cuda, "_open_cuda_device", lambda index: HostDevice())
    return OrtCudaBackend()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("has nodes that are assigned to the default CPU EP, but", EnvironmentMismatchError),
        ("Protobuf parsing failed", BundleError),
    ],
)
def test_operators_without_a_kernel_are_refused_with_advice(
    exported: Exported,
    cuda_backend: OrtCudaBackend,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    expected: type[SkipDecError],
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BundleError("engine head", words)

    monkeypatch.setattr(ort_cuda, "open_session", refuse)
    bundle = EngineBundle.open(exported("pre_norm", quantize="int8"))
    with pytest.raises(expected) as caught:
        cuda_backend.load(bundle, bundle.manifest.head)
    assert ("export the model with --dtype float16" in str(caught.value)) == (
        expected is not BundleError
    )


@pytest.mark.parametrize("provider", ["CPUExecutionProvider", "CUDAExecutionProvider"])
def test_sessions_run_on_cuda_without_a_memory_pattern_or_are_refused(
    exported: Exported, cuda_backend: OrtCudaBackend, monkeypatch: pytest.MonkeyPatch, provider: str
) -> None:
    """A memory pattern would allocate in a capture; a session may fall back to the CPU."""
    opened = []

    def open_session(*arguments: Any, **_: object) -> FakeSession:  # noqa: ANN401
        opened.append(arguments)
        return FakeSession(provider)

    monkeypatch.setattr(ort_cuda, "open_session", open_session)
    bundle = EngineBundle.open(exported("pre_norm"))
    if provider == "CPUExecutionProvider":
        with pytest.raises(EnvironmentMismatchError, match=r"onnxruntime-gpu\[cuda,cudnn\]"):
            cuda_backend.load(bundle, bundle.manifest.head)
    else:
        cuda_backend.load(bundle, bundle.manifest.head)
    (arguments,) = opened
    ((asked_provider, settings),) = arguments[-1]
    assert asked_provider == "CUDAExecutionProvider"
    assert settings["user_compute_stream"] == str(cuda_backend.device.stream)
    assert arguments[2].enable_mem_pattern is False


def test_onnxruntime_logs_nothing_while_a_cuda_session_opens(
    exported: Exported, cuda_backend: OrtCudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One session opens while another opens, as in two threads; the second fails."""
    bundle = EngineBundle.open(exported("pre_norm"))
    severities = [WARNING]
    seen = []

    def open_session(_: object, spec: EngineSpec, *__: object, **___: object) -> FakeSession:
        seen.append(severities[-1])
        if spec is bundle.manifest.embed:
            raise BundleError("embed", "broken")
        with pytest.raises(BundleError, match="broken"):
            cuda_backend.load(bundle, bundle.manifest.embed)
        seen.append(severities[-1])
        return FakeSession("CUDAExecutionProvider")

    monkeypatch.setattr(onnxruntime, "set_default_logger_severity", severities.append)
    monkeypatch.setattr(ort_cuda, "open_session", open_session)
    cuda_backend.load(bundle, bundle.manifest.head)
    assert seen == [ERROR, ERROR, ERROR]
    assert severities[-1] == WARNING


@pytest.mark.parametrize("unwritten", [TensorRole.PAST_KEY, TensorRole.PAST_VALUE])
def test_a_rehearsed_engine_fails_on_unwritten_caches(
    exported: Exported, backend: OrtRehearsalBackend, unwritten: TensorRole
) -> None:
    """Attention on an H200 multiplied unwritten caches by 0, and NaN stays NaN."""
    bundle = EngineBundle.open(exported("pre_norm", dtype="float16"))
    tensors = upload_all(backend, layer_arrays(bundle, [5], CAPACITY))
    binding = backend.load(bundle, bundle.manifest.layers[0]).bind(tensors)
    binding.run()
    backend.device.synchronize()
    place = tensors[unwritten]
    assert isinstance(place, DeviceTensor)
    backend.device.fill(place.address + place.nbytes - 2, 2, UNWRITTEN)  # of the last position
    binding.run()
    with pytest.raises(DeviceError, match=r"attention would read 1 of .* that nobody wrote"):
        backend.device.synchronize()


def test_a_rehearsed_capture_fails_if_onnxruntime_would_allocate(
    exported: Exported, backend: OrtRehearsalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On CUDA the first run always allocates, and so does the second with a memory pattern."""
    bundle = EngineBundle.open(exported("pre_norm"))
    tensors = upload_all(backend, layer_arrays(bundle, [5], CAPACITY))
    binding = backend.load(bundle, bundle.manifest.layers[0]).bind(tensors)
    with pytest.raises(DeviceError, match=r"layer_000 \| has run 0 times"):
        backend.device.capture(binding.run)
    binding.run()
    backend.device.capture(binding.run).launch()
    other = upload_all(backend, layer_arrays(bundle, [5, 3], CAPACITY))
    with pytest.raises(DeviceError, match="has run 0 times"):
        backend.device.capture(backend.load(bundle, bundle.manifest.layers[0]).bind(other).run)

    def with_patterns(*arguments: Any, **named: Any) -> onnxruntime.InferenceSession:  # noqa: ANN401
        arguments[2].enable_mem_pattern = True
        return open_session(*arguments, **named)

    open_session = ort_cuda.open_session
    monkeypatch.setattr(ort_cuda, "open_session", with_patterns)
    binding = backend.load(bundle, bundle.manifest.layers[0]).bind(tensors)
    binding.run()
    with pytest.raises(DeviceError, match="has run 1 times"):
        backend.device.capture(binding.run)
    binding.run()
    backend.device.capture(binding.run).launch()
    backend.device.synchronize()
