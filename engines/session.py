"""How one engine runs: the session protocol that every backend implements, and their registry.

An engine is loaded once and bound often: ``session.bind({role: array, ...})`` fixes the memory of
every input and output, ``Binding.run()`` executes. Binding the same array as input and output
(KV cache, hidden states) updates it in place. The caller owns all arrays; a binding keeps them
alive until ``release()``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .errors import UsageError
from .manifest import EngineSpec, TensorRole
from .registry import Registry

if TYPE_CHECKING:
    from .bundle import EngineBundle

Array = NDArray[Any]

BACKENDS = Registry("target", {"onnxruntime": "engines.ort:OrtBackend"})


class Binding(ABC):
    """One engine with the memory of all its inputs and outputs fixed."""

    @abstractmethod
    def run(self) -> None:
        """Execute the engine on the bound memory, as it is now."""

    @abstractmethod
    def release(self) -> None:
        """Drop the references to the bound arrays; ``run`` must not be called afterwards."""


class EngineSession(ABC):
    """One loaded engine."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec

    def bind(self, tensors: Mapping[TensorRole, Array]) -> Binding:
        """Bind one C-contiguous array to each role of the engine.

        Raises UsageError, all problems at once, for a role that is missing or unknown, or an
        array of another dtype, rank or fixed dimension, or that is not contiguous.
        """
        problems = [*self._role_problems(tensors), *self._array_problems(tensors)]
        if problems:
            raise UsageError(f"engine {self.spec.name}", *problems)
        return self._bind(tensors)

    @abstractmethod
    def _bind(self, tensors: Mapping[TensorRole, Array]) -> Binding:
        """Bind checked tensors."""

    def _role_problems(self, tensors: Mapping[TensorRole, Array]) -> list[str]:
        problems = []
        if missing := sorted(self.spec.roles - tensors.keys()):
            problems.append(f"nothing bound to {', '.join(missing)}")
        if unknown := sorted(tensors.keys() - self.spec.roles):
            problems.append(f"has no tensor for {', '.join(unknown)}")
        return problems

    def _array_problems(self, tensors: Mapping[TensorRole, Array]) -> list[str]:
        problems = []
        for tensor in (*self.spec.inputs, *self.spec.outputs):
            if tensor.role not in tensors:
                continue
            array = tensors[tensor.role]
            if array.dtype != np.dtype(tensor.dtype):
                problems.append(f"{tensor.role} is {array.dtype}; expected {tensor.dtype}")
            if not array.flags.c_contiguous:
                problems.append(f"{tensor.role} is not C-contiguous")
            fixed_match = len(array.shape) == len(tensor.shape) and all(
                isinstance(wanted, str) or wanted == seen
                for wanted, seen in zip(tensor.shape, array.shape, strict=True)
            )
            if not fixed_match:
                problems.append(f"{tensor.role} is {array.shape}; expected {tensor.shape}")
        return problems


class EngineBackend(ABC):
    """Loads the engines of one bundle and allocates memory that they can be bound to."""

    @abstractmethod
    def load(self, bundle: EngineBundle, spec: EngineSpec) -> EngineSession:
        """Load one engine of ``bundle``."""

    @abstractmethod
    def empty(self, nbytes: int) -> NDArray[np.uint8]:
        """Allocate ``nbytes`` of uninitialised memory, aligned for the backend's kernels."""

    @abstractmethod
    def close(self) -> None:
        """Free what the backend itself holds; sessions are dropped by their owner."""
