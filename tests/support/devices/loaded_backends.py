"""Load a tiny bundle in every backend: on the CPU, a host device and a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from backend_tensors import download, upload_all
from fake_plans import compile_bundle
from fake_tensorrt import FakeTensorRt
from host_device import HostDevice
from numpy.typing import NDArray

from skipdec.engines.backends.ort import OrtBackend
from skipdec.engines.backends.ort_cuda import OrtCudaBackend, OrtRehearsalBackend
from skipdec.engines.backends.session import EngineBackend, EngineSession
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.manifest import EngineSpec, TensorRole
from skipdec.engines.memory import Tensor
from skipdec.engines.trt.backend import TensorRtBackend, TensorRtRtxBackend
from skipdec.exporter.tensorrt_config import TensorRtConfig

Array = NDArray[Any]
Tensors = dict[TensorRole, Tensor]
CAPACITY = 9


@dataclass(frozen=True)
class Loaded:
    """A tiny bundle and a backend that loads it."""

    bundle: EngineBundle
    backend: EngineBackend

    def session(self, name: str) -> EngineSession:
        spec = next(spec for spec in self.bundle.manifest.engines if spec.name == name)
        return self.backend.load(self.bundle, spec)

    def tensors(self, session: EngineSession, rows: int, step: int, past: int = 0) -> Tensors:
        """Return ``layer_arrays`` in the backend's memory."""
        return upload_all(self.backend, layer_arrays(session.spec, rows, step, past))

    def get(self, tensor: Tensor) -> Array:
        return download(self.backend, tensor)

    def run_once(self, session: EngineSession, tensors: Tensors) -> Array:
        binding = session.bind(tensors)
        binding.run()
        binding.release()
        return self.get(tensors[TensorRole.HIDDEN_STATES_OUT])

    @property
    def tolerance(self) -> float:
        return 1e-4 if self.bundle.manifest.precision.dtype == "float32" else 3e-2


def layer_arrays(spec: EngineSpec, rows: int, step: int, past: int = 0) -> dict[TensorRole, Array]:
    """Return ``step`` tokens per row after ``past`` ones; unused cache positions hold 7."""
    sizes = {"B": rows, "S": step, "T": CAPACITY}
    random = np.random.default_rng(0)
    tensors: dict[TensorRole, Array] = {}
    for tensor in (*spec.inputs, *spec.outputs):
        shape = [sizes[size] if isinstance(size, str) else size for size in tensor.shape]
        tensors[tensor.role] = random.standard_normal(shape).astype(tensor.dtype)
    for role in (TensorRole.PAST_KEY, TensorRole.PAST_VALUE):
        tensors[role][:, :, past:] = 7
    tensors[TensorRole.PRESENT_KEY] = tensors[TensorRole.PAST_KEY]
    tensors[TensorRole.PRESENT_VALUE] = tensors[TensorRole.PAST_VALUE]
    lengths: dict[TensorRole, Array] = {
        TensorRole.SEQLENS_K: np.full(rows, past + step - 1, np.int32),
        TensorRole.TOTAL_SEQUENCE_LENGTH: np.array(past + step, np.int32),
        TensorRole.WRITE_INDICES: np.full(rows, past, np.int64),
        TensorRole.ATTENTION_MASK: np.broadcast_to(
            np.tri(step, CAPACITY, past, dtype=bool), (rows, 1, step, CAPACITY)
        ).copy(),
    }
    return tensors | {role: array for role, array in lengths.items() if role in spec.roles}


def fake_tensorrt(exported: Callable[..., Path], directory: Path) -> Loaded:
    canonical = exported("pre_norm", keep_canonical=True)
    bundle = compile_bundle(canonical, directory / "bundle", kv_buckets=[CAPACITY])
    device = HostDevice()
    library = FakeTensorRt(device).library()
    return Loaded(EngineBundle.open(bundle), TensorRtBackend(device=device, library=library))


def onnxruntime_cuda(exported: Callable[..., Path], _: Path) -> Loaded:
    backend = OrtCudaBackend()
    return Loaded(EngineBundle.open(exported("pre_norm", dtype="float16")), backend)


def real_tensorrt(
    backend_class: type[TensorRtBackend], exported: Callable[..., Path], _: Path
) -> Loaded:
    backend = backend_class()
    options = TensorRtConfig(kv_buckets=(CAPACITY,))
    target = backend_class.target
    # Heads of 16, as TensorRT fuses no float16 attention with smaller ones.
    limits = {"max_seq_len": CAPACITY, "tensorrt": options}
    bundle = exported("untied", dtype="float16", target=target, **limits)
    return Loaded(EngineBundle.open(bundle), backend)


# A backend raises EnvironmentMismatchError on a machine that can't run it.
BACKENDS: dict[str, Callable[[Callable[..., Path], Path], Loaded]] = {
    "onnxruntime": lambda exported, _: Loaded(
        EngineBundle.open(exported("pre_norm")), OrtBackend()
    ),
    "onnxruntime on a host device": lambda exported, _: Loaded(
        EngineBundle.open(exported("pre_norm")), OrtRehearsalBackend(device=HostDevice())
    ),
    "onnxruntime float16 on a host device": lambda exported, _: Loaded(
        EngineBundle.open(exported("pre_norm", dtype="float16")),
        OrtRehearsalBackend(device=HostDevice()),
    ),
    "fake tensorrt": fake_tensorrt,
    "onnxruntime-cuda": onnxruntime_cuda,
    "tensorrt": partial(real_tensorrt, TensorRtBackend),
    "tensorrt-rtx": partial(real_tensorrt, TensorRtRtxBackend),
}
ON_GPUS = ("onnxruntime-cuda", "tensorrt", "tensorrt-rtx")
