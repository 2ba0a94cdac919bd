"""Recordings of the inputs of every engine call of a run.

A recording is a directory: ``recording.json`` has the bundle's digest and the calls in order;
``000000.npz`` and following files have the inputs of a call, one array per tensor role.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from pydantic import Field, ValidationError
from typing_extensions import override

from ..bundle import file_record
from ..checking import FrozenModel
from ..documents import naming_file, read_json, write_file
from ..errors import UsageError
from ..manifest import EngineKind, EngineSpec, KVBucket, RelativePath, Sha256, TensorRole
from ..memory import Array, Tensor
from .session import Binding, EngineBackend, EngineSession

if TYPE_CHECKING:
    from ..bundle import EngineBundle

RECORDING_NAME = "recording.json"
_CACHES = (TensorRole.PAST_KEY, TensorRole.PAST_VALUE)


class RecordedCall(FrozenModel):
    """One call of an engine. A step, counted from 0, begins at each call of the embedding."""

    engine: str
    step: int = Field(ge=0)
    file: RelativePath
    sha256: Sha256


class RecordingIndex(FrozenModel):
    """The content of ``recording.json``."""

    digest: str = Field(description="digest of the bundle's manifest")
    target: str
    complete: bool = Field(description="False: calls beyond the size limit are missing")
    nbytes: int = Field(ge=0, description="size of all arrays")
    calls: tuple[RecordedCall, ...]


class RecordingBackend(EngineBackend):
    """A wrapper that saves the inputs of another backend's engines in ``directory`` on every run.

    From the call on that would exceed ``limit`` bytes of arrays in total, calls are dropped. Caches
    are saved up to the last position that the call reaches. ``close`` completes the recording.
    Raises UsageError if ``directory`` is not empty, or for engines that run on a device.
    """

    def __init__(self, backend: EngineBackend, directory: Path, limit: int) -> None:
        if backend.device is not None:
            raise UsageError("recording", "needs engines on the CPU; leave the device out")
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise UsageError(
                "recording", f"{directory} exists and is not empty; name a new directory"
            )
        directory.mkdir(parents=True, exist_ok=True)
        self.memory = backend.memory
        self._backend = backend
        self._recorder = Recorder(directory, limit)
        self._bundle: EngineBundle | None = None

    def load(
        self, bundle: EngineBundle, spec: EngineSpec, bucket: KVBucket | None = None
    ) -> EngineSession:
        """Load an engine of the one bundle that is recorded."""
        self._bundle = bundle
        return RecordingSession(self._backend.load(bundle, spec, bucket), self._recorder)

    @override
    def hashes_weights(self, spec: EngineSpec) -> bool:
        return self._backend.hashes_weights(spec)

    def close(self) -> None:
        """Write ``recording.json`` and close the wrapped backend."""
        if self._bundle is not None:
            manifest = self._bundle.manifest
            self._recorder.finish(manifest.digest, manifest.target)
        self._backend.close()


@dataclass
class Recorder:
    """Writes calls to ``directory`` until ``limit`` bytes are reached."""

    directory: Path
    limit: int
    is_complete: bool = True
    _step: int = -1
    _nbytes: int = 0
    _calls: list[RecordedCall] = field(default_factory=list)

    def record(self, spec: EngineSpec, tensors: Mapping[TensorRole, Tensor]) -> None:
        """Save the inputs of a call that is about to run."""
        if spec.kind is EngineKind.EMBED:
            self._step += 1
        arrays = {tensor.role: np.asarray(tensors[tensor.role]) for tensor in spec.inputs}
        if (reached := _reached(arrays)) is not None:
            arrays |= {role: arrays[role][:, :, :reached] for role in _CACHES}
        nbytes = sum(array.nbytes for array in arrays.values())
        self.is_complete = self.is_complete and self._nbytes + nbytes <= self.limit
        if not self.is_complete:
            return
        name = f"{len(self._calls):06}.npz"
        with naming_file(self.directory / name):
            # numpy's stub confuses the mapping's arrays with its own options.
            np.savez(self.directory / name, **{role.value: a for role, a in arrays.items()})  # type: ignore[arg-type]
        sha256 = file_record(self.directory, name).sha256
        call = RecordedCall(engine=spec.name, step=self._step, file=name, sha256=sha256)
        self._nbytes += nbytes
        self._calls.append(call)

    def finish(self, digest: str, target: str) -> None:
        """Write the index; without calls, remove the directory."""
        if not self._calls and self.is_complete:
            self.directory.rmdir()
            return
        index = RecordingIndex(
            digest=digest,
            target=target,
            complete=self.is_complete,
            nbytes=self._nbytes,
            calls=tuple(self._calls),
        )
        write_file(self.directory / RECORDING_NAME, index.model_dump_json(indent=2) + "\n")


def _reached(arrays: Mapping[TensorRole, Array]) -> int | None:
    """Return the number of cache positions that a layer's call uses; None for other engines."""
    if TensorRole.TOTAL_SEQUENCE_LENGTH in arrays:
        return int(arrays[TensorRole.TOTAL_SEQUENCE_LENGTH])
    if TensorRole.WRITE_INDICES in arrays:
        tokens = arrays[TensorRole.HIDDEN_STATES].shape[1]
        return int(arrays[TensorRole.WRITE_INDICES].max() + tokens)
    return None


class RecordingSession(EngineSession):
    """A wrapper around a session whose bindings save their inputs on every run."""

    def __init__(self, session: EngineSession, recorder: Recorder) -> None:
        super().__init__(session.spec)
        self._session = session
        self._recorder = recorder

    def _bind(self, tensors: Mapping[TensorRole, Tensor]) -> Binding:
        binding = self._session.bind(tensors)
        return RecordingBinding(binding, self.spec, dict(tensors), self._recorder)


@dataclass(frozen=True)
class RecordingBinding(Binding):
    """A wrapper around a binding that saves the arrays before each run."""

    binding: Binding
    spec: EngineSpec
    tensors: dict[TensorRole, Tensor]
    recorder: Recorder

    @override
    def run(self) -> None:
        self.recorder.record(self.spec, self.tensors)
        self.binding.run()

    @override
    def release(self) -> None:
        self.tensors.clear()
        self.binding.release()


@dataclass(frozen=True)
class Recording:
    """An opened recording; arrays are read on demand."""

    directory: Path
    index: RecordingIndex

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Read the index. Raises UsageError, saying what is there instead."""
        path = directory / RECORDING_NAME
        remedy = "make one with 'skipdec generate --record DIR'"
        document = read_json(path, UsageError, remedy=remedy)
        try:
            return cls(directory, RecordingIndex.model_validate(document))
        except ValidationError as error:
            raise UsageError(str(path), f"is not a recording ({error}); {remedy}") from error

    def calls(self, engine: str) -> Iterator[tuple[int, dict[TensorRole, Array]]]:
        """Yield step and inputs of each call of ``engine``. Raises UsageError if damaged."""
        for call in self.index.calls:
            if call.engine == engine:
                yield call.step, self._read(call)

    def _read(self, call: RecordedCall) -> dict[TensorRole, Array]:
        path = self.directory / call.file
        try:
            if file_record(self.directory, call.file).sha256 != call.sha256:
                raise ValueError("it is damaged: its hash differs from the index")
            with np.load(path, allow_pickle=False) as arrays:
                return {TensorRole(name): arrays[name] for name in arrays.files}
        except (OSError, ValueError) as error:
            raise UsageError("recording", f"{path} can't be read: {error}") from error
