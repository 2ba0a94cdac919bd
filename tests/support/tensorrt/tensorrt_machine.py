"""Provide a host device with a fake TensorRT, and plans."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from backend_tensors import upload
from fake_plans import compile_bundle
from fake_tensorrt import VERSION, FakeTensorRt
from host_device import HostDevice

from skipdec.engines.backends.session import Binding
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.manifest import EngineSpec, TensorRole
from skipdec.engines.memory import Tensor
from skipdec.engines.trt.backend import TensorRtBackend, TensorRtSession

CAPACITY = 16
Tensors = dict[TensorRole, Tensor]
Compiled = Callable[..., EngineBundle]


class Machine:
    """A host device, a fake TensorRT on it and the backend that uses both."""

    def __init__(
        self,
        version: str = VERSION,
        compute_capability: str = "8.9",
        backend: type[TensorRtBackend] = TensorRtBackend,
    ) -> None:
        self.device = HostDevice(compute_capability=compute_capability)
        self.trt = FakeTensorRt(self.device)
        library = self.trt.library(version, backend.target)
        self.backend = backend(device=self.device, library=library)

    def load(self, bundle: EngineBundle, name: str = "layer_000") -> TensorRtSession:
        (spec,) = (spec for spec in bundle.manifest.all_engines if spec.name == name)
        return self.backend.load(bundle, spec)

    def tensors(self, spec: EngineSpec, rows: int, step: int = 1, gathered: int = 1) -> Tensors:
        """Return zeros of the right shapes; past and present are the same tensors."""
        sizes = {"B": rows, "S": step, "T": CAPACITY, "R": gathered}
        tensors: Tensors = {}
        for tensor in (*spec.inputs, *spec.outputs):
            shape = [sizes[size] if isinstance(size, str) else size for size in tensor.shape]
            tensors[tensor.role] = upload(self.backend, np.zeros(shape, tensor.dtype))
        if TensorRole.PAST_KEY in tensors:
            tensors[TensorRole.PRESENT_KEY] = tensors[TensorRole.PAST_KEY]
            tensors[TensorRole.PRESENT_VALUE] = tensors[TensorRole.PAST_VALUE]
        return tensors

    def bind(self, session: TensorRtSession, rows: int, step: int = 1) -> Binding:
        return session.bind(self.tensors(session.spec, rows, step))


def small_bundle(
    exported: Callable[..., Path],
    directory: Path,
    **build: Any,  # noqa: ANN401
) -> EngineBundle:
    """Build plans for decode batches of 8 and prompts of 4 x 12, ``CAPACITY`` or 32 positions."""
    options = {"kv_buckets": (CAPACITY, 32), "max_prompt_len": 12, "max_prefill_rows": 4}
    source = exported("pre_norm", keep_canonical=True)
    return EngineBundle.open(compile_bundle(source, directory / "plans", **options, **build))


def edit_plan(bundle: EngineBundle, spec: EngineSpec, **changes: Any) -> None:  # noqa: ANN401
    """Change fields of an engine's first plan."""
    path = bundle.file(spec.graph)
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
