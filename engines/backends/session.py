"""The session protocol that every backend implements, and the choice of a target's backend.

An engine is loaded once and bound often: ``session.bind({role: array, ...})`` fixes the memory of
every input and output, ``Binding.run()`` executes. An array bound as input and output (KV cache,
hidden states) is updated in place. The caller owns all arrays; a binding references them until
``release()``.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, get_args

import numpy as np

from ..bundle import WeightsPlace
from ..errors import UsageError
from ..importing import load
from ..manifest import EngineSpec, KVBucket, TensorRole
from ..memory import Memory, Tensor, numpy_dtype
from ..targets import default_device, target_of

if TYPE_CHECKING:
    from ..bundle import EngineBundle
    from .device import Device

_MOST_ACCEPTED = 4096  # signatures per engine; each length of prompt has its own
_DEVICE = re.compile(r"(cpu$|cuda|rehearsal)(?::(\d{1,9}))?")


class Binding(ABC):
    """One engine with the memory of all its inputs and outputs fixed."""

    @abstractmethod
    def run(self) -> None:
        """Execute the engine on the bound memory; on a device, enqueue the execution."""

    @abstractmethod
    def release(self) -> None:
        """Drop the references to the bound arrays; ``run`` must not be called afterwards."""


class EngineSession(ABC):
    """One loaded engine."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.roles = spec.roles
        self._accepted: set[tuple[object, ...]] = set()  # shapes and types that `bind` has checked

    def bind(self, tensors: Mapping[TensorRole, Tensor]) -> Binding:
        """Bind one C-contiguous tensor of the backend's memory to each role of the engine.

        Raises UsageError, listing all problems, for missing or unknown roles, arrays that are not
        contiguous or have the wrong dtype, rank or fixed dimension, and conflicting sizes of one
        symbol, such as the batch's ``B``.
        """
        checked = tuple(
            (role, tensor.shape, tensor.dtype, _is_contiguous(tensor))
            for role, tensor in tensors.items()
        )
        if checked not in self._accepted:
            problems = [*self._role_problems(tensors), *self._array_problems(tensors)]
            if problems:
                raise UsageError(f"engine {self.spec.name}", *problems)
            if len(self._accepted) >= _MOST_ACCEPTED:
                self._accepted.clear()
            self._accepted.add(checked)
        return self._bind(tensors)

    @abstractmethod
    def _bind(self, tensors: Mapping[TensorRole, Tensor]) -> Binding:
        """Bind checked tensors."""

    def _role_problems(self, tensors: Mapping[TensorRole, Tensor]) -> list[str]:
        problems = []
        if missing := sorted(self.roles - tensors.keys()):
            problems.append(f"nothing bound to {', '.join(missing)}")
        if unknown := sorted(tensors.keys() - self.roles):
            problems.append(f"has no tensor for {', '.join(unknown)}")
        return problems

    def _array_problems(self, tensors: Mapping[TensorRole, Tensor]) -> list[str]:
        problems = []
        sizes: dict[str, tuple[int, TensorRole]] = {}  # by symbol, with the first role that has it
        for tensor in (*self.spec.inputs, *self.spec.outputs):
            if tensor.role not in tensors:
                continue
            array = tensors[tensor.role]
            on_host = isinstance(array, np.ndarray)
            expected = numpy_dtype(tensor.dtype) if on_host else tensor.dtype
            if array.dtype != expected:  # numpy's dtypes compare with names; str() is slow
                problems.append(f"{tensor.role} is {array.dtype}; expected {expected}")
            if not _is_contiguous(array):
                problems.append(f"{tensor.role} is not C-contiguous")
            dimensions = list(zip(tensor.shape, array.shape, strict=False))
            fixed_match = len(array.shape) == len(tensor.shape) and all(
                isinstance(wanted, str) or wanted == seen for wanted, seen in dimensions
            )
            if not fixed_match:
                problems.append(f"{tensor.role} is {array.shape}; expected {tensor.shape}")
                continue
            for symbol, size in dimensions:
                if isinstance(symbol, str):
                    first, role = sizes.setdefault(symbol, (size, tensor.role))
                    if size != first:
                        problems.append(
                            f"{tensor.role} has {symbol} = {size}, but {role} has {first}"
                        )
        return problems


def _is_contiguous(tensor: Tensor) -> bool:
    """Return whether a tensor is C-contiguous, as those on devices always are."""
    return not isinstance(tensor, np.ndarray) or tensor.flags.c_contiguous


class EngineBackend(ABC):
    """Loads the engines of one bundle, and allocates memory that they can be bound to.

    ``device`` is None if engines run synchronously on the host; otherwise ``Binding.run`` enqueues
    on the device's stream, and memory is the device's.
    """

    memory: Memory
    device: Device | None = None

    @abstractmethod
    def load(
        self, bundle: EngineBundle, spec: EngineSpec, bucket: KVBucket | None = None
    ) -> EngineSession:
        """Load one engine of ``bundle``; ``bucket`` is one of ``spec.buckets``, if it has any."""

    def load_choice(self, bundle: EngineBundle, candidates: EngineSpec) -> EngineSession | None:
        """Load the engine that guesses tokens from ``candidates``; None if it can't run here."""
        return None

    def hashes_weights(self, spec: EngineSpec) -> bool:
        """Return True if ``load`` itself hashes the weights of ``spec`` on the bundle's request."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Free the backend's own resources; owners drop their sessions."""


def open_backend(
    target: str,
    *,
    device: str | None = None,
    threads: int | None = None,
    weights: WeightsPlace = "mapped",
) -> EngineBackend:
    """Create the backend that runs bundles of ``target`` on ``device``.

    ``device`` is ``cpu``, ``cuda``, ``cuda:INDEX``, or ``rehearsal``, the GPU code path on host
    memory; None is the target's default. ``threads`` and ``weights`` only apply to the CPU. Raises
    UsageError for an invalid combination and EnvironmentMismatchError for a missing device.
    """
    wanted = default_device(target) if device is None else device
    kind, index = parse_device(wanted, target)
    if threads is not None and kind != "cpu":
        raise UsageError("threads", f"is {threads}, but engines run on {wanted}; leave it out")
    if weights not in get_args(WeightsPlace):
        raise UsageError("weights", f"is {weights!r}; allowed: 'mapped', 'copied'")
    if weights != "mapped" and kind != "cpu":
        raise UsageError("weights", f"is {weights!r}, but engines run on {wanted}; leave it out")
    make = load(target_of(target).backends[kind])
    backend: EngineBackend = make(threads, weights) if kind == "cpu" else make(index or 0)
    return backend


def parse_device(device: str, target: str) -> tuple[str, int | None]:
    """Return the kind of device and its index, if one is given; bundles of ``target`` run there.

    >>> parse_device("cuda:1", "tensorrt"), parse_device("cpu", "onnxruntime")
    (('cuda', 1), ('cpu', None))

    Raises UsageError for another text and for a device on which they can't run.
    """
    match = _DEVICE.fullmatch(device) if isinstance(device, str) else None
    if match is None:
        raise UsageError("device", f"is {device!r}; allowed: cpu, cuda, cuda:INDEX, rehearsal")
    kind, index = match.groups()
    backends = target_of(target).backends
    if kind not in backends:
        allowed = ", ".join(backends)
        raise UsageError(
            "device", f"is {device!r}, where {target} engines can't run; allowed: {allowed}"
        )
    return kind, None if index is None else int(index)
