"""What runs a bundle's TensorRT plans on this machine, or why nothing does."""

from __future__ import annotations

from dataclasses import dataclass

from ..engines.backends.session import EngineBackend, open_backend
from ..engines.bundle import EngineBundle
from ..engines.errors import EnvironmentMismatchError
from ..engines.host.gpus import survey_gpus
from ..engines.manifest import EngineSpec, KVBucket
from .verify_calls import EngineCalls
from .verify_device import DeviceCalls


@dataclass(frozen=True)
class PlanRunner:
    """A GPU with the library that the bundle's plans were built for; the caller closes it."""

    bundle: EngineBundle
    backend: EngineBackend

    def load(self, spec: EngineSpec, bucket: KVBucket | None) -> EngineCalls:
        """One plan, ready to be called."""
        build = self.bundle.manifest.build
        assert build is not None
        session = self.backend.load(self.bundle, spec, bucket)
        return DeviceCalls(session, self.backend, build, bucket)


def plan_runner(bundle: EngineBundle) -> PlanRunner | str:
    """What runs the plans of ``bundle`` on this machine, else the reason why nothing does."""
    try:
        backend = open_backend(bundle.manifest.target)
    except EnvironmentMismatchError as error:
        return error.problems[0] if survey_gpus().gpus else "no GPU here"
    try:
        backend.load(bundle, bundle.manifest.embed)
    except EnvironmentMismatchError as error:
        backend.close()
        return error.problems[0]
    return PlanRunner(bundle, backend)


def plans(bundle: EngineBundle) -> list[tuple[str, EngineSpec, KVBucket | None]]:
    """Name, engine and KV bucket of every plan."""
    return [
        (spec.name if bucket is None else f"{spec.name}.t{bucket.capacity}", spec, bucket)
        for spec in bundle.manifest.all_engines
        for bucket in (spec.buckets or (None,))
    ]
