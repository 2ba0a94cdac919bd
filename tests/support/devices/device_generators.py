"""Open tiny bundles on host-memory devices, with ONNX Runtime and a fake TensorRT."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fake_plans import compile_bundle
from fake_tensorrt import FakeTensorRt
from host_device import HostDevice

from skipdec import Generator
from skipdec.engines.backends.ort_cuda import OrtRehearsalBackend
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.trt.backend import TensorRtBackend
from skipdec.runtime.scheduling.running_batch import RunningBatch
from skipdec.runtime.stitching.device.slot_stitcher import DeviceSlotStitcher
from skipdec.runtime.stitching.device.stitcher import DeviceStitcher
from skipdec.runtime.stitching.protocol import Stitcher

Exported = Callable[..., Path]
Open = Callable[..., Generator]


def on_onnxruntime(
    exported: Exported,
    _: Path,
    structure: str,
    **options: object,  # of `export`
) -> tuple[EngineBundle, object]:
    backend = OrtRehearsalBackend(device=HostDevice())
    return EngineBundle.open(exported(structure, **options)), backend


def on_tensorrt(
    exported: Exported,
    directory: Path,
    structure: str,
    **build: Any,  # noqa: ANN401  (of `compile_bundle`)
) -> tuple[EngineBundle, object]:
    bundle = directory / "compiled"
    if not bundle.exists():
        canonical = exported(structure, keep_canonical=True)
        compile_bundle(canonical, bundle, kv_buckets=[16, 32, 64], **build)
    device = HostDevice()
    backend = TensorRtBackend(device=device, library=FakeTensorRt(device).library())
    return EngineBundle.open(bundle), backend


def on_cpu(exported: Exported, structure: str) -> Generator:
    """Open the same bundle on the CPU's backend."""
    return Generator.open(exported(structure), threads=1)


TARGETS = {"onnxruntime": on_onnxruntime, "tensorrt": on_tensorrt}


def device_of(generator: Generator) -> HostDevice:
    """Return the device of a generator of ``TARGETS``."""
    assert isinstance(generator.device, HostDevice)
    return generator.device


def slots_of(engine: RunningBatch) -> DeviceSlotStitcher:
    """Return the slots of an engine of a generator of ``TARGETS``."""
    slots = engine._slots
    assert isinstance(slots, DeviceSlotStitcher)
    return slots


def num_graphs(engines: Stitcher) -> int:
    """Return the number of steps that are kept as graphs."""
    assert isinstance(engines, DeviceStitcher)
    kept = (steps for of_kind in engines._steps.values() for steps in of_kind.values())
    return sum(len(steps.graphs) for steps in kept)
